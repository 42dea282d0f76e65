"""The commands of `tutti` and their options, from the programs."""
import json
import pathlib
import sys

SOURCES = pathlib.Path(__file__).resolve().parents[2]
FILES = {"FILE", "DIR", "OLD", "NEW", "RUN"}   # Types of options; completion offers files.


def report_parser(name):
    """That of a command of tutti-report."""
    sys.path.insert(0, str(SOURCES / "python"))
    from tutti_report.arguments import parser
    commands = next(action for action in parser()._actions if action.dest == "command")
    return commands.choices[name]


def report_options(name):
    """Those of a command of tutti-report, in the form of `tutti options`."""
    for action in report_parser(name)._actions:
        flags = action.option_strings
        yield {"short": [flag[1:] for flag in flags if not flag.startswith("--")],
               "long": [flag[2:] for flag in flags if flag.startswith("--")],
               "name": "" if flags else action.metavar,
               "help": "print this help and exit" if action.dest == "help" else action.help % vars(action),
               "type": action.metavar or "" if flags else "",
               "group": "Options",
               "repeatable": action.nargs == "+",
               "choices": list(action.choices or [])}


def read_commands(file):
    """Those of the output of `tutti options`; the first one is the program itself. Each option has `flags`, such as "-n" and "--ranks", and `files`."""
    commands = json.loads(pathlib.Path(file).read_text())
    for command in commands:
        if command["in_tutti_report"]:
            command["options"] = list(report_options(command["name"]))
        for option in command["options"]:
            option["flags"] = [f"-{name}" for name in option["short"]] + [f"--{name}" for name in option["long"]]
            option["files"] = not FILES.isdisjoint((option["type"], option["name"]))
    return commands
