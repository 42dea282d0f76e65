"""Checks that the pkg-config commands of a README work with an installed library.

usage: check_installed.py BUILD PREFIX LIBDIR README...

Installs BUILD into a temporary folder, and runs the block of each README in a copy of its folder."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

COMMANDS = re.compile(r"^```sh\n((?:(?!```).)*?pkg-config.*?)^```$", re.M | re.S)

build, prefix, libdir, *readmes = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    stage = pathlib.Path(folder, "stage")
    subprocess.run(["meson", "install", "-C", build, "--quiet", "--destdir", stage], check=True)
    libraries = f"{stage}{prefix}/{libdir}"
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "PKG_CONFIG_PATH": f"{libraries}/pkgconfig"}
    for readme in map(pathlib.Path, readmes):
        block = COMMANDS.search(readme.read_text())
        if not block:
            sys.exit(f"{readme}: no commands with pkg-config")
        copy = pathlib.Path(folder, readme.parent.name)
        shutil.copytree(readme.parent, copy)
        print(f"{readme.parent.name}$ {block[1]}", flush=True)
        subprocess.run(["sh", "-e", "-c", block[1]], cwd=copy, env=environment, check=True)
