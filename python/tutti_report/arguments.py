"""The command line of tutti-report. Man pages and shell completion are made from it, without NumPy."""
import argparse

from tutti_report.texts import UsageError

PICTURES = ("svg", "png", "pdf")
FORMATS = ("table", "json", "md")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(f"{message} (see {self.prog} --help)")


def parser():
    """`tutti` starts this program, and its commands are named as there."""
    top = Parser(prog="tutti", description="Compares, checks and draws runs of tutti bench --out FILE.json.")
    commands = top.add_subparsers(dest="command", required=True, parser_class=Parser)

    def add(name, text):
        return commands.add_parser(name, help=text, description=text)

    compare = add("compare", "say which rows of saved runs are faster or slower")
    compare.add_argument("old", metavar="OLD", help="FILE,FILE,... or a directory; with --run a command")
    compare.add_argument("new", metavar="NEW", help="the same, for NEW")
    compare.add_argument("--run", action="store_true", help="OLD and NEW are commands (tutti bench ...): run them in turn")
    compare.add_argument("--threshold", metavar="PERCENT", default="5%", help="smaller differences do not count (default %(default)s)")
    compare.add_argument("--strict", action="store_true", help="rows that are too noisy or only in OLD fail, too")
    compare.add_argument("--rounds", metavar="N", type=int,
                         help="with --run: number of rounds (default as many as fit into --max-total)")
    compare.add_argument("--max-total", metavar="TIME", default="60s",
                         help="with --run: no round but the first begins that would end later (default %(default)s)")
    compare.add_argument("-f", "--format", metavar="FORMAT", default="table", choices=FORMATS,
                         help="format of stdout: table, json or md (default %(default)s)")
    compare.add_argument("--out", metavar="FILE", action="append", default=[], help="also write this file, .json or .md; repeatable")

    check = add("check", "check rules for the rows of a saved run")
    check.add_argument("runs", metavar="RUN", help="FILE,FILE,... or a directory")
    check.add_argument("--require", action="append", default=[], metavar="RULE",
                       help="'ROWS : METRIC OP VALUE', such as 'all_reduce f32 >=64M : busbw >= 180'; repeatable")
    check.add_argument("--baseline", metavar="OLD", help="no row may be slower than in these files")
    check.add_argument("--tolerance", metavar="PERCENT", default="5%", help="by this or more (default %(default)s)")

    report = add("report", "draw a picture of saved runs")
    report.add_argument("files", metavar="FILE", nargs="+", help="JSON files of tutti bench --out")
    report.add_argument("-o", "--out", metavar="FILE", required=True, help="the picture: .svg, .png or .pdf; required")
    return top
