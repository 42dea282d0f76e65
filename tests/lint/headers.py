"""Checks that headers are guarded and short, and that public ones define no macros."""
import re

import tree

LONG = 130   # lines of a public header: a sign to look at, not a wall


def check(root):
    found = []
    for path in tree.files(root, ".hpp", ".hpp.in"):
        name = str(path.relative_to(root))
        text = path.read_text()
        if not text.startswith("#pragma once\n"):
            found.append(f"{name}:1: does not start with '#pragma once'")
        if not name.startswith("include/"):
            continue
        length = len(text.splitlines())
        if length > LONG:
            found.append(f"{tree.WARNING}{name}: {length} lines; a public header has about {LONG}")
        for number, line in tree.lines(path):
            if re.match(r"\s*#\s*(define|undef)\b", line):
                found.append(f"{name}:{number}: a public header shows no macro: {line.strip()}")
            if re.match(r"\s*using\s+namespace\b", line):
                found.append(f"{name}:{number}: a public header opens no namespace: {line.strip()}")
    return found


if __name__ == "__main__":
    tree.run(check)
