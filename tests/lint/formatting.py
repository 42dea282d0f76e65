"""Checks that clang-format 14 with the project's .clang-format changes no C++ file."""
import collections
import subprocess

import tree


def check(root):
    sources = [str(p.relative_to(root)) for p in tree.files(root, ".cpp", ".hpp")]
    command = [tree.program("clang-format-14"), "--dry-run", "-Werror", "--style=file", *sources]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    places = collections.Counter(line.split(":")[0] for line in done.stderr.splitlines() if ": error:" in line)
    found = [f"{name}: {count} places; run clang-format-14 -i {name}" for name, count in places.items()]
    return found or ([done.stderr] if done.returncode else [])


if __name__ == "__main__":
    tree.run(check)
