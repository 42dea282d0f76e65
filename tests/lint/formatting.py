"""Checks that clang-format 14 with the project's .clang-format changes no C++ file, and that prose has at most
120 columns."""
import collections
import subprocess

import tree


def wide_prose(root):
    """Lines of documents beyond 120 columns. Tables, code and HTML have any width."""
    for path in tree.files(root, ".md"):
        code = False
        for number, line in tree.lines(path):
            if line.lstrip().startswith("```"):
                code = not code
            elif not code and len(line) > 120 and not line.startswith(("|", "    ", "<")):
                yield f"{path.relative_to(root)}:{number}: {len(line)} columns; prose has at most 120"


def check(root):
    sources = [str(p.relative_to(root)) for p in tree.files(root, ".cpp", ".hpp")]
    command = [tree.program("clang-format-14"), "--dry-run", "-Werror", "--style=file", *sources]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    places = collections.Counter(line.split(":")[0] for line in done.stderr.splitlines() if ": error:" in line)
    found = [f"{name}: {count} places; run clang-format-14 -i {name}" for name, count in places.items()]
    found = found or ([done.stderr] if done.returncode else [])
    return found + list(wide_prose(root))


if __name__ == "__main__":
    tree.run(check)
