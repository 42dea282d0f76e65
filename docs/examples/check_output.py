"""Checks that documents show the real output of programs.

usage: check_output.py [--write] DOCUMENT PROGRAM...

Under each line "<!-- output: NAME ARGUMENT... -->" of DOCUMENT there is a fenced block. It must
equal the output of the PROGRAM of this name with these arguments, which prints nothing on stderr.
An argument that is the name of a PROGRAM stands for its path. If every line begins with a rank, as
"[2] ", the lines are compared in the order of the ranks: `tutti run` prints them as they come. Each
PROGRAM must be shown. --write replaces the blocks by the output. A command that ends with status 77
lacks something that it needs: the check is skipped with what the command prints on stderr."""
import difflib
import pathlib
import re
import subprocess
import sys

RANK = re.compile(r"\[(\d+)\] ")
BLOCK = re.compile(r"^<!-- output: (?P<command>[^\n]+) -->\n+```\w*\n(?P<text>.*?)^```$", re.M | re.S)


class Skipped(Exception):
    """A command cannot run here; the text says why."""


def by_rank(text):
    lines = text.splitlines(keepends=True)
    ranks = [RANK.match(line) for line in lines]
    if not all(ranks):
        return text
    return "".join(line for _, line in sorted(zip(ranks, lines), key=lambda pair: int(pair[0][1])))


def run(command, programs):
    """The output of the command, or the reason why it is not valid."""
    name, *arguments = command.split()
    if name not in programs:
        return None, f"it is not one of the programs {' '.join(programs)}"
    try:
        done = subprocess.run([programs[name], *(programs.get(a, a) for a in arguments)], capture_output=True, text=True,
                              check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return None, "it does not end within a minute"
    if done.returncode == 77:
        raise Skipped(done.stderr)
    if done.returncode != 0:
        return None, f"status {done.returncode}: {done.stderr}"
    if done.stderr:
        return None, f"it prints on stderr: {done.stderr}"
    return by_rank(done.stdout), None


def check(document, paths):
    """Returns all problems, and the corrected text of the document."""
    programs = {pathlib.Path(path).name: path for path in paths}
    text = document.read_text()
    problems, right, end, shown = [], "", 0, set()
    for block in BLOCK.finditer(text):
        shown.update(block["command"].split())
        printed, why = run(block["command"], programs)
        if why:
            problems.append(f"{document}: {block['command']}: {why}")
            continue
        problems += difflib.unified_diff(block["text"].splitlines(), printed.splitlines(), str(document),
                                         block["command"], lineterm="")
        right += text[end:block.start("text")] + printed
        end = block.end("text")
    problems += [f"{document}: shows no output of {name}" for name in programs if name not in shown]
    return problems, right + text[end:]


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    page = pathlib.Path(arguments[0])
    try:
        found, corrected = check(page, arguments[1:])
    except Skipped as skipped:
        print(skipped)
        sys.exit(77)
    if "--write" in sys.argv:
        page.write_text(corrected)
    print("\n".join(found) or "equal")
    sys.exit(1 if found else 0)
