"""Checks that the version in meson.build is the newest release of the changelog."""
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
    return []


if __name__ == "__main__":
    tree.run(check)
