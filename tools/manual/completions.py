"""Completion scripts of bash, zsh and fish."""
import shlex


def flags_of(command):
    return [flag for option in command["options"] for flag in option["flags"]]


def positional(command):
    """The choices of the positional arguments, and whether files are meant."""
    found = [option for option in command["options"] if not option["flags"]]
    return [choice for option in found for choice in option["choices"]], any(option["files"] for option in found)


def below(command, commands):
    """The subcommands of a command, by the names that follow its name."""
    prefix = "" if command is commands[0] else command["name"] + " "
    return {each["name"].removeprefix(prefix): each for each in commands[1:]
            if each["name"].startswith(prefix) and " " not in each["name"].removeprefix(prefix)}


def depth(command):
    return 0 if command["name"] == "tutti" else len(command["name"].split())


def path(command):
    """What a script has as the name of a command: empty for the program."""
    return "" if command["name"] == "tutti" else command["name"]


BASH = r"""# bash completion for tutti. Made from its options by tools/manual.

_tutti()
{
    local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]}
    local command= depth= flags= names= choices= kind= i
    if ((COMP_CWORD > 1)); then command=${COMP_WORDS[1]}; fi
    if ((COMP_CWORD > 2)) && [[ "$command ${COMP_WORDS[2]}" == 'bench step' ]]; then command='bench step'; fi
    if [[ $word == '=' ]]; then   # Of --option=value, which readline cuts into three words.
        word=
    elif [[ $option == '=' ]]; then
        option=${COMP_WORDS[COMP_CWORD - 2]}
    fi

    if [[ $command == run ]]; then
        for ((i = 2; i < COMP_CWORD; ++i)); do
            case ${COMP_WORDS[i]} in
                RUN_VALUES) if [[ ${COMP_WORDS[i + 1]} == '=' ]]; then ((i += 2)); else ((++i)); fi ;;
                --) ;;
                -*) ;;
                *) if declare -F _command_offset >/dev/null; then _command_offset "$i"; else kind=files; fi
                   break ;;
            esac
        done
        if ((i < COMP_CWORD)) && [[ $kind != files ]]; then return; fi
        if ((i == COMP_CWORD)) && [[ $word != -* ]]; then kind=program; fi
    fi

    if [[ -z $kind ]]; then
        case "$command $option" in
VALUES
        esac
    fi
    if [[ -z $kind ]]; then
        case $command in
WORDS
        esac
        if [[ $word == -* ]]; then
            choices=$flags kind=
        elif ((COMP_CWORD == depth)); then
            choices+=" $names"
        fi
    fi

    local done=
    if [[ $kind == list && $word == *,* ]]; then
        done=${word%,*},
        word=${word##*,}
    fi
    mapfile -t COMPREPLY < <(compgen -W "$choices" -P "$done" -- "$word"
        case $kind in
            files) compgen -A file -- "$word" ;;
            program) compgen -A command -- "$word"; compgen -A file -- "$word" ;;
        esac)
    if [[ $kind == files || $kind == program ]]; then compopt -o filenames 2>/dev/null || :; fi
}
complete -F _tutti tutti
"""


def bash(commands):
    values, words = [], []
    for command in commands:
        for option in command["options"]:
            if option["flags"] and option["type"]:
                patterns = "|".join(shlex.quote(f"{path(command)} {flag}") for flag in option["flags"])
                kind = "files" if option["files"] else "list" if option["type"] == "LIST" else "value"
                values.append(f"{patterns}) kind={kind} choices={shlex.quote(' '.join(option['choices']))} ;;")
        choices, files = positional(command)
        kind = "files" if files else "list" if command["name"] == "bench" else ""
        names = commands[0] if command["name"] == "help" else command
        words.append(f"{shlex.quote(path(command))}) flags={shlex.quote(' '.join(flags_of(command)))}"
                     f" names={shlex.quote(' '.join(below(names, commands)))} depth={depth(command) + 1}"
                     f" kind={kind} choices={shlex.quote(' '.join(choices))} ;;")
    run = next(command for command in commands if command["name"] == "run")
    valued = "|".join(flag for option in run["options"] if option["type"] for flag in option["flags"])
    script = BASH.replace("RUN_VALUES", valued)
    for mark, lines in (("VALUES", values), ("WORDS", words)):
        script = script.replace(f"\n{mark}\n", "\n" + "\n".join(" " * 12 + line for line in lines) + "\n")
    return script


ZSH = r"""#compdef tutti
# zsh completion for tutti. Made from its options by tools/manual.

_tutti() {
  local curcontext=$curcontext command= context state line
  typeset -A opt_args
  if (( CURRENT > 2 )); then
    command=$words[2]
    shift words
    (( CURRENT-- ))
    if [[ "$command $words[2]" == 'bench step' ]] && (( CURRENT > 2 )); then
      command='bench step'
      shift words
      (( CURRENT-- ))
    fi
  fi
  case $command in
COMMANDS
  esac
}

_tutti "$@"
"""


def zsh_action(option):
    if option["files"]:
        return "_files"
    if option["type"] in ("LIST", "[,COLL...]"):
        return f"_sequence compadd - {' '.join(option['choices'])}" if option["choices"] else " "
    return f"({' '.join(option['choices'])})" if option["choices"] else " "


def zsh_specs(command, commands):
    """The arguments of _arguments."""
    for option in command["options"]:
        if not option["flags"]:
            continue
        help_text = option["help"].replace("]", "\\]").replace(":", "\\:")
        message = option["type"].replace(":", "\\:")
        rest = shlex.quote(f"[{help_text}]" + (f":{message}:{zsh_action(option)}" if option["type"] else ""))
        plus = {flag: flag + ("" if not option["type"] else "=" if flag.startswith("--") else "+") for flag in option["flags"]}
        exclusive = "*" if option["repeatable"] else f"({' '.join(option['flags'])})"
        names = "{" + ",".join(plus.values()) + "}" if len(plus) > 1 else shlex.quote(*plus.values())
        yield f"{shlex.quote(exclusive)}{names}{rest}"
    names = below(commands[0] if command["name"] == "help" else command, commands)
    described = " ".join(f"{name}\\:{shlex.quote(each['help'])}" for name, each in names.items())
    if command["name"] == "run":
        yield "'1:PROGRAM:_command_names -e'"
        yield "'*::ARGUMENTS:_normal'"
    elif command["name"] == "bench":
        colls = next(option for option in command["options"] if not option["flags"])
        first = {**colls, "choices": [*colls["choices"], *names]}
        yield shlex.quote(f"1:COLL:{zsh_action(first)}")
        yield shlex.quote(f"*:COLL:{zsh_action(colls)}")
    elif names:
        yield shlex.quote(f"1:subcommand:(({described}))")
    else:
        arguments = [option for option in command["options"] if not option["flags"]]
        for place, option in enumerate(arguments, 1):
            yield shlex.quote(f"{'*' if option['repeatable'] else place}:{option['name']}:{zsh_action(option)}")


def zsh(commands):
    lines = []
    for command in commands:
        specs = " \\\n      ".join(zsh_specs(command, commands))
        lines.append(f"  {shlex.quote(path(command))})\n    _arguments -s \\\n      {specs} ;;")
    return ZSH.replace("COMMANDS", "\n".join(lines), 1)


FISH = r"""# fish completion for tutti. Made from its options by tools/manual.

function __tutti_in
    set -l words (commandline -opc)
    set -l command "$words[2]"
    if test "$words[2] $words[3]" = 'bench step'
        set command 'bench step'
    end
    test "$command" = "$argv"
end

function __tutti_at_word
    test (count (commandline -opc)) = $argv[1]
end

complete -c tutti -f
"""


def fish_values(option):
    choices = option["choices"]
    if option["files"]:
        return " -F"
    if not choices:
        return ""
    listed = option["type"] in ("LIST", "[,COLL...]")
    return " -a " + shlex.quote(f'(__fish_complete_list , "string split , {",".join(choices)}")' if listed else " ".join(choices))


def fish(commands):
    lines = []
    for command in commands:
        start = f"complete -c tutti -n {shlex.quote('__tutti_in ' + path(command))}"
        for option in command["options"]:
            flags = "".join(f" {'-l' if flag.startswith('--') else '-s'} {flag.lstrip('-')}" for flag in option["flags"])
            needs = "" if not option["type"] or not option["flags"] else " -r" if option["files"] else " -x"
            if flags or option["choices"] or option["files"]:
                lines.append(f"{start}{flags}{needs}{fish_values(option)} -d {fish_quoted(option['help'])}")
        names = below(commands[0] if command["name"] == "help" else command, commands)
        first = f"complete -c tutti -n '__tutti_in {path(command)}; and __tutti_at_word {depth(command) + 1}'"
        lines += [f"{first} -a {name} -d {fish_quoted(each['help'])}" for name, each in names.items()]
    lines.append("complete -c tutti -n '__tutti_in run' -F -a '(__fish_complete_command)'")
    return FISH + "\n".join(lines) + "\n"


def fish_quoted(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
