"""Compiles all sources of the library as one, so that no choice of backends makes a unity build with two equal names.

usage: one_unit.py ROOT BUILD

Reads the commands from BUILD/compile_commands.json, and checks the syntax only."""
import json
import pathlib
import re
import shlex
import subprocess
import sys


def main(root, build):
    root, commands = root.resolve(), json.loads((build / "compile_commands.json").read_text())
    files = {(build / c["file"]).resolve(): c["command"] for c in commands if "tutti_objects" in c["output"]}
    # The sources of a unit stand in it as includes.
    units = [file for file in files if "-unity" in file.name]
    sources = [pathlib.Path(line) for unit in units for line in re.findall(r'#include<(.*)>', unit.read_text())]
    sources += [file for file in files if file not in units and root in file.parents]
    arguments = shlex.split(next(iter(files.values())))
    compiler = arguments[:next(i for i, a in enumerate(arguments) if a.startswith("-"))]
    kept = dict.fromkeys(a for command in files.values() for a in shlex.split(command) if re.match("-(I|D|std)", a))
    done = subprocess.run([*compiler, *kept, "-fsyntax-only", "-x", "c++", "-"], cwd=build, check=False, text=True,
                          input="".join(f'#include "{source}"\n' for source in sources))
    return f"{len(sources)} sources" if done.returncode == 0 and sources else sys.exit(1)


if __name__ == "__main__":
    print(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
