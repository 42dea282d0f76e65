"""docs/environment.md lists exactly the environment variables that the sources read."""
import re

import tree

OURS = re.compile(r"""["'](TUTTI_[A-Z0-9_]+)["']|\$\{?(TUTTI_[A-Z0-9_]+)""")  # C++ and Python; shell.
OTHERS = re.compile(r'\bgetenv\("([A-Z0-9_]+)"\)')
LIST = "lib/core/launch/unknown_variables.cpp"
TEST = "tests/unit/launch/unknown_variables_test.cpp"  # Names that nothing reads.
LISTED = re.compile(r"^\| `([A-Z0-9_]+)`", re.M)


def check(root):
    read, texts = {}, []
    for path in tree.files(root):
        name = str(path.relative_to(root))
        if not name.startswith(("lib/", "backends/", "python/", "tools/", "tests/")):
            continue
        if name.startswith(("tests/lint/", LIST, TEST)):
            continue
        texts.append(path.read_text(errors="replace"))
        for number, line in tree.lines(path):
            for variable in [*OTHERS.findall(line), *filter(None, sum(OURS.findall(line), ()))]:
                read.setdefault(variable, f"{name}:{number}")
    page = root / "docs/environment.md"
    listed = set(LISTED.findall(page.read_text())) if page.exists() else set()
    found = [f"{where}: {variable} is not in the table of docs/environment.md"
             for variable, where in sorted(read.items()) if variable not in listed]
    # Some variables are read through a function: their name as a string suffices here.
    mentioned = re.compile(r"""["'$]\{?([A-Z0-9_]+)\b""")
    known = {variable for text in texts for variable in mentioned.findall(text)}
    found += [f"docs/environment.md: {variable} is in the table, but nothing reads it"
              for variable in sorted(listed - known)]
    if (root / LIST).exists():
        named = {"TUTTI_" + name for name in re.findall(r'"([A-Z][A-Z_]+[A-Z])"', (root / LIST).read_text())}
        ours = {name for name in listed if name.startswith("TUTTI_") and not name.startswith("TUTTI_TEST_")}
        found += [f"{LIST}: {name} is not in both it and the table of docs/environment.md"
                  for name in sorted(named ^ ours)]
    return found


if __name__ == "__main__":
    tree.run(check)
