"""Checks that documents quote the sources word for word, and that their links resolve.

usage: check_docs.py ROOT DOCUMENT...

A fenced block under "<!-- code: PATH -->" occurs in that file. The blocks under "<!-- all of: PATH
-->" together are the whole file, except for blank lines. Links to files and to headings resolve,
and so does every path in backticks that begins with a folder of the sources. Paths are relative to
ROOT, links to the document."""
import pathlib
import re
import sys

BLOCK = re.compile(r"^<!-- (code|all of): (\S+) -->\n+```\w*\n(.*?)^```$", re.M | re.S)
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
PATH = re.compile(r"`((?:include|lib|backends|tests|tools|docs)/[\w./-]*)`")


def filled(text):
    return [line for line in text.splitlines() if line.strip()]


def anchors(text):
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.M)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_quotes(root, text):
    pieces = {}
    for kind, path, block in BLOCK.findall(text):
        if not (root / path).is_file():
            yield f"quotes {path}, which does not exist"
        elif kind == "code" and f"\n{block}" not in "\n" + (root / path).read_text():
            yield f"{path} has not the lines: {block.splitlines()[0]} ..."
        elif kind == "all of":
            pieces.setdefault(path, []).extend(filled(block))
    for path, quoted in pieces.items():
        for number, (left, right) in enumerate(zip([*quoted, ""], [*filled((root / path).read_text()), ""])):
            if left != right:
                yield f"{path}: filled line {number + 1} is '{right}', quoted is '{left}'"
                break


def check_pointers(root, document, text):
    prose = FENCED.sub("", text)
    for target, anchor in LINK.findall(prose):
        if "://" in target:
            continue
        file = (document.parent / target).resolve() if target else document
        if not file.exists():
            yield f"links to {target}, which does not exist"
        elif anchor and anchor not in anchors(file.read_text()):
            yield f"links to {target}{anchor}, but there is no such heading"
    for path in PATH.findall(prose):
        if not (root / path).exists():
            yield f"speaks of {path}, which does not exist"


def check(root, document):
    text = document.read_text()
    return [f"{document.relative_to(root)}: {problem}"
            for problem in [*check_quotes(root, text), *check_pointers(root, document, text)]]


if __name__ == "__main__":
    sources = pathlib.Path(sys.argv[1]).resolve()
    found = [problem for name in sys.argv[2:] for problem in check(sources, pathlib.Path(name).resolve())]
    print("\n".join(found) or "clean")
    sys.exit(1 if found else 0)
