"""Runs the programs of docs/examples/20_seeds with the backend nccl, which is over the double here.
They print what their README shows for the host.

usage: seeds_test.py CHECK_OUTPUT README PROGRAM..."""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

checker, readme, *programs = sys.argv[1:]
spec = importlib.util.spec_from_file_location("check_output", checker)
check_output = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_output)

shown = {block["command"].split()[-1]: block["text"] for block in check_output.BLOCK.finditer(pathlib.Path(readme).read_text())}
alone = {**os.environ, "TUTTI_RANK": "0", "TUTTI_SIZE": "1", "TUTTI_LOCAL_RANK": "0"}   # The double is one process.
failed = False
for program in programs:
    done = subprocess.run([program, "nccl"], capture_output=True, text=True, check=False, timeout=100, env=alone)
    lines = re.sub(r"^(\[0\] |\[[1-9]\].*\n)", "", shown[pathlib.Path(program).name], flags=re.M)   # Of rank 0.
    if (done.returncode, done.stdout, done.stderr) != (0, lines, ""):
        print(f"{program}: status {done.returncode}\n{done.stderr}printed:\n{done.stdout}shown:\n{lines}")
        failed = True
sys.exit(failed)
