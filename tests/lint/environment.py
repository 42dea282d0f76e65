"""docs/environment.md lists every environment variable that the sources read, and no other."""
import re

import tree

READ = re.compile(r'"(TUTTI_[A-Z0-9_]+)"')          # In C++ and Python, wherever the name is written.
SHELL = re.compile(r"\$\{?(TUTTI_[A-Z0-9_]+)")
GETENV = re.compile(r'\bgetenv\("([A-Z0-9_]+)"\)')  # Variables of others.
LISTED = re.compile(r"^\| `([A-Z0-9_]+)`", re.M)


def check(root):
    read = {}
    for path in tree.files(root):
        name = str(path.relative_to(root))
        if not name.startswith(("lib/", "backends/", "tools/", "tests/")) or name.startswith("tests/lint/"):
            continue
        if name.endswith(".md"):
            continue
        for number, line in tree.lines(path):
            for pattern in (READ, SHELL, GETENV):
                for variable in pattern.findall(line):
                    read.setdefault(variable, f"{name}:{number}")
    page = root / "docs/environment.md"
    listed = set(LISTED.findall(page.read_text())) if page.exists() else set()
    found = [f"{where}: {variable} is not in the table of docs/environment.md"
             for variable, where in sorted(read.items()) if variable not in listed]
    found += [f"docs/environment.md: {variable} is in the table, but nothing reads it"
              for variable in sorted(listed - set(read))]
    return found


if __name__ == "__main__":
    tree.run(check)
