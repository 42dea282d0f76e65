"""Finds names of this library in docs/coming-from.md that neither the public headers, the Python package, the tool's page
nor the table of environment variables has."""
import re

import tree

PAGE = "docs/coming-from.md"
WORD = re.compile(r"[A-Za-z_]\w+")
MEMBER = re.compile(r"\b([A-Z]\w+)::(\w+)")
CODE = re.compile(r"`([^`]+)`")


def check(root):
    known, members = set(), {}
    for path in tree.files(root, ".hpp", ".py", ".hpp.in"):
        if path.is_relative_to(root / "include") or path.is_relative_to(root / "python"):
            text = re.sub(r"//.*", "", path.read_text())
            known.update(WORD.findall(text))
            # The body of a class or an enumeration ends at a brace in the column of its first letter.
            for space, name, body in re.findall(r"^( *)(?:class|struct|enum class) (?:\[\[\w+\]\] )?(\w+)[^;{]*\{(.*?)^\1\}",
                                                text, re.M | re.S):
                members.setdefault(name, set()).update(WORD.findall(body))
    for page in ("docs/tool.md", "docs/environment.md"):
        if (root / page).exists():
            known.update(word for code in CODE.findall((root / page).read_text()) for word in WORD.findall(code))
    if not (root / PAGE).exists():
        return []
    problems = []
    for number, line in tree.lines(root / PAGE):
        cells = line.split("|")
        if len(cells) != 5 or set(cells[1].strip()) <= {"-"}:
            continue
        for code in CODE.findall(cells[2]):
            problems += [f"{PAGE}:{number}: {kind} has no {name}" for kind, name in MEMBER.findall(code)
                         if kind in members and name not in members[kind]]
            problems += [f"{PAGE}:{number}: nothing here is called {name}"
                         for name in WORD.findall(re.sub(r'"[^"]*"|^group\.', "", code)) if name not in known]
        if not CODE.search(cells[2]) and not re.search(r"\bnone\b", cells[2]) and cells[2].strip() != "Here":
            problems.append(f"{PAGE}:{number}: no name, and not none")
    return problems


if __name__ == "__main__":
    tree.run(check)
