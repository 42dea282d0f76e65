"""Checks the library, the backends and the tool with clang-tidy. Arguments: the sources, the build
folder."""
import re
import subprocess
import sys

import tree

root, build = sys.argv[1:]
command = [tree.program("run-clang-tidy-14"), "-quiet", "-p", build, rf"^{root}/(lib|backends|tools)/"]
done = subprocess.run(command, capture_output=True, text=True, check=False)
plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)  # Its output always has colours.
found = sorted({line for line in plain.splitlines() if ": error: " in line or ": warning: " in line})
if done.returncode and not found:  # Another failure, for example a missing build folder.
    found = plain.splitlines()[-20:] + done.stderr.splitlines()[-20:]
print("\n".join(found) or "clean")
sys.exit(1 if found or done.returncode else 0)
