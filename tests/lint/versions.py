"""Checks that the version in meson.build is the newest release of the changelog, and that the recipes of package
managers have this version, options that exist, and no fault of syntax."""
import ast
import json
import re

import tree


def check(root):
    declared = re.search(r"^\s*version : '([\d.]+)'", (root / "meson.build").read_text(), re.M)
    if not declared:
        return ["meson.build: no project version"]
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text() if changelog.exists() else ""
    released = re.search(r"^## \[?v?(\d[\d.]*)", text, re.M)
    if not released:
        return ["CHANGELOG.md: no heading like '## 1.2.3'"]
    if released[1] != declared[1]:
        return [f"CHANGELOG.md: its newest release is {released[1]}, meson.build says {declared[1]}"]
    debian = root / "tools/packaging/debian/changelog"
    packaged = re.match(r"tutti \(([\d.]+)-", debian.read_text()) if debian.exists() else None
    if packaged and packaged[1] != declared[1]:
        return [f"{debian.relative_to(root)}: its newest version is {packaged[1]}, meson.build says {declared[1]}"]
    return [f"{path.relative_to(root)}: {problem}"
            for path in tree.files(root) if path.is_relative_to(root / "tools/packaging/recipes")
            for problem in check_recipe(path, declared[1], root)]


def check_recipe(path, declared, root):
    """The problems of one file of a recipe."""
    text = path.read_text()
    try:
        if path.suffix == ".py":
            ast.parse(text)
        elif path.suffix == ".json":
            json.loads(text)
    except (SyntaxError, ValueError) as error:
        yield f"is not valid: {error}"
    for version in re.findall(r'^\W*version\W{1,5}(\d[\d.]*)"', text, re.M):
        if version != declared:
            yield f"says version {version}, meson.build says {declared}"
    options = re.findall(r"^option\('(\w+)'", (root / "meson_options.txt").read_text(), re.M)
    for option in re.findall(r"-D(\w+)=", text):
        if option not in options:
            yield f"option {option} is not in meson_options.txt"


if __name__ == "__main__":
    tree.run(check)
