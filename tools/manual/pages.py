"""Man pages of the commands, and the tables of options in docs/tool.md."""
import re
import textwrap

from commands import SOURCES

OPTIONS = re.compile(r"(<!-- options: ([\w ]+) -->\n).*?(<!-- end -->\n)", re.S)
# Of Markdown: code, a table, indented code, an item of a list, a paragraph.
BLOCK = re.compile(r"^```\w*\n((?:(?!```).*\n)+)```\n|^((?:\|.*\n)+)|^((?: {4,}.*\n)+)|^\* (.+\n(?: {2,3}\S.*\n)*)"
                   r"|^((?:(?!```|\* |\|).+\n)+)", re.M)


def escaped(text):
    """Text that roff prints as it is."""
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-"), flags=re.M)


def styled(text):
    """A paragraph of Markdown: code is bold, a link is its text."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))
    text = textwrap.fill(text.replace("**", ""), 68, break_long_words=False, break_on_hyphens=False)
    return re.sub(r"`([^`]*)`", r"\\fB\1\\fR", escaped(text)) + "\n"


def verbatim(text):
    return f".PP\n.RS 4\n.nf\n{escaped(text.rstrip())}\n.fi\n.RE\n"


def table(rows):
    """Each row but the header is an item, whose tag is the first cell."""
    for row in rows.splitlines()[2:]:
        tag, *rest = (cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip("|")))
        yield f".TP 7\n{styled(tag)}{styled('; '.join(filter(None, rest)))}"


def from_markdown(text):
    for code, rows, indented, item, paragraph in BLOCK.findall(OPTIONS.sub("", text)):
        if code or indented:
            yield verbatim(textwrap.dedent(code or indented))
        elif rows:
            yield from table(rows)
        else:
            yield f".IP \\(bu 2\n{styled(item)}" if item else f".PP\n{styled(paragraph)}"


def section(file, heading):
    """The text below a heading, up to the next heading. Empty if there is no such heading."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^##|\Z)", (SOURCES / file).read_text(), re.M | re.S)
    return found[1] if found else ""


def page_name(command):
    return command["name"] if command["name"] == "tutti" else f"tutti-{command['name'].replace(' ', '-')}"


def called(command):
    return command["name"] if command["name"] == "tutti" else f"tutti {command['name']}"


def options_of(command):
    """Items by group, in the order of the help."""
    for group in dict.fromkeys(option["group"] for option in command["options"]):
        if group != "Options":
            yield f".SS {group}\n"
        for option in command["options"]:
            if option["group"] == group:
                names = ", ".join(f"\\fB{escaped(flag)}\\fR" for flag in option["flags"]) or f"\\fI{option['name']}\\fR"
                type_name = f" \\fI{escaped(option['type'])}\\fR" if option["type"] else ""
                yield f".TP\n{names}{type_name}\n{styled(option['help'])}"


def page(command, commands, version):
    """The man page of a command. The documents describe it, and the exit codes."""
    title = page_name(command)
    if command is commands[0]:
        about = [f".PP\n{styled(command['help'])}", *(f".TP\n\\fB{escaped(page_name(each))}\\fR(1)\n{styled(each['help'])}"
                                                       for each in commands[1:] if each["name"] != "help")]
    else:
        file = "docs/launching.md" if command["name"] == "run" else "docs/tool.md"
        about = list(from_markdown(section(file, called(command)))) or [
            f".PP\n\\fB{called(command)}\\fR: {styled(command['help'])}"]
    codes = from_markdown(section("docs/tool.md", "Exit codes"))
    if command["name"] == "run":   # Its description has them.
        codes = [".PP\nThat of a rank that failed, or one of those above.\n"]
    others = ", ".join(f"\\fB{escaped(page_name(each))}\\fR(1)" for each in commands
                       if each is not command and each["name"] != "help")
    parts = {"NAME": f"{escaped(title)} \\- {escaped(command['help'][0].lower() + command['help'][1:].rstrip('.'))}\n",
             "SYNOPSIS": f"\\fB{called(command)}\\fR {escaped(command['usage'])}\n",
             "DESCRIPTION": "".join(about),
             "OPTIONS": "".join(options_of(command)),
             "EXIT STATUS": "".join(codes),
             "ENVIRONMENT": "Variables TUTTI_... are described in docs/environment.md of the sources.\n",
             "EXAMPLES": verbatim(command["examples"]).removeprefix(".PP\n"),
             "SEE ALSO": f"{others}\n"}
    body = "".join(f".SH {name}\n{text.removeprefix('.PP' + chr(10))}" for name, text in parts.items())
    return f'.TH {escaped(title.upper())} 1 "" "tutti {version}" "User Commands"\n.nh\n{body}'


def with_tables(text, commands):
    """A document in which "<!-- options: COMMAND -->" is followed by a table of the options, of the program by one of
    its commands."""
    def filled(match):
        command = next(each for each in commands if each["name"] == match[2])
        if command is commands[0]:
            rows = [f"| `{called(each)} {each['usage']}` | {each['help']} |\n" for each in commands[1:]]
            return f"{match[1]}\n| Command | Purpose |\n|---|---|\n{''.join(rows)}\n{match[3]}"
        parent = next(each for each in commands if each["name"] == command["name"].split()[0])
        inherited = parent["options"] if parent is not command else []
        rows = [f"| `{' '.join(filter(None, (', '.join(option['flags']), option['type'])))}` | {option['help']} |\n"
                for option in command["options"]
                if option["flags"] and "--help" not in option["flags"] and option not in inherited]
        return "".join([match[1], "\n| Option | Meaning |\n|---|---|\n", *rows, "\n", match[3]])
    return OPTIONS.sub(filled, text)
