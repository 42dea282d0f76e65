"""Checks objects that are compiled for newer processors than others: a weak symbol, of which the linker keeps one copy,
must have the object's own name in it. Otherwise a program may use the copy of a processor that it does not run on.
usage: private_symbols.py [ARCHIVE NAME]..."""
import subprocess
import sys

WEAK = "WVuwv"
# References to the C++ runtime, not code.
DATA = ("DW.ref.",)


def check(archive, name):
    lines = subprocess.run(["nm", "--defined-only", archive], check=True, capture_output=True, text=True).stdout
    weak = [line.split()[-1] for line in lines.splitlines() if len(line.split()) == 3 and line.split()[1] in WEAK]
    if not weak:
        return [f"{archive} has no weak symbol at all; is it compiled?"]
    return [f"{archive}: {symbol} has no '{name}' in it" for symbol in weak if name not in symbol and not symbol.startswith(DATA)]


if __name__ == "__main__":
    found = [problem for pair in zip(sys.argv[1::2], sys.argv[2::2]) for problem in check(*pair)]
    print("\n".join(found) or "clean")
    sys.exit(bool(found) or len(sys.argv) < 3)
