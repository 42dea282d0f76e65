"""Checks that documents quote the sources word for word, and that their links resolve.

usage: check_docs.py ROOT

The documents are README.md, CHANGELOG.md and all pages in docs/.

A fenced block under "<!-- code: PATH -->" occurs in that file. The blocks under "<!-- all of: PATH
-->" together are the whole file, except for blank lines. Links to files and to headings resolve,
and so does every path in backticks that begins with a folder of the sources. Paths are relative to
ROOT, links to the document.

Between "<!-- way -->" and "<!-- end -->" a list has every source that a call passes. Each, but the
first, has a header that another one includes, or implements a class through which it is called.
What they include besides, if it has a source, stands under "Not passed"."""
import pathlib
import re
import sys

BLOCK = re.compile(r"^<!-- (code|all of): (\S+) -->\n+```\w*\n(.*?)^```$", re.M | re.S)
WAY = re.compile(r"^<!-- way -->$(.*?)(^Not passed.*?)?^<!-- end -->$", re.M | re.S)
SOURCE = re.compile(r"`((?:lib|backends)/[\w/]+\.cpp)`")
INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.M)
CALLED_THROUGH = ["include/tutti/backend/host_backend.hpp", "lib/core/collectives/functions.hpp", "backends/mesh/mesh.hpp",
                  "backends/mesh/links.hpp"]
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


def included(root, path):
    """The library's headers that a file includes."""
    folders = [path.parent, *(root / base for base in ("lib/core", "lib/training", "backends", "include"))]
    found = [[folder / name for folder in folders if (folder / name).is_file()] for name in INCLUDE.findall(path.read_text())]
    return {headers[0] for headers in found if headers}


def check_ways(root, text):
    def all_included(path):
        found, new = set(), included(root, path)
        while new:
            found |= new
            new = set().union(*(included(root, header) for header in new)) - found
        return found

    called_through = {root / name for name in CALLED_THROUGH}
    for way in WAY.finditer(text):
        passed, beside = ({root / name for name in SOURCE.findall(part or "")} for part in way.groups())
        headers = {source: all_included(source) for source in passed if source.is_file()}
        for source, all_headers in headers.items():
            direct = included(root, source)
            own = {source.with_suffix(".hpp")} & all_headers or {header for header in direct if header.parent == source.parent}
            others = set().union(*(found for other, found in headers.items() if other != source))
            name = source.relative_to(root)
            if source != root / SOURCE.search(way[1])[1] and not own & others and not called_through & all_headers:
                yield f"{name}: no other source on the way includes a header of it"
            for other in sorted(header.with_suffix(".cpp") for header in direct):
                if other.is_file() and other.parent != root / "lib/core/values" and other not in passed | beside:
                    yield f"{name} includes the header of {other.relative_to(root)}, which is not on the way"


def check(root, document):
    text = document.read_text()
    return [f"{document.relative_to(root)}: {problem}"
            for problem in [*check_quotes(root, text), *check_pointers(root, document, text), *check_ways(root, text)]]


if __name__ == "__main__":
    sources = pathlib.Path(sys.argv[1]).resolve()
    pages = [sources / "README.md", sources / "CHANGELOG.md", *sorted((sources / "docs").rglob("*.md"))]
    found = [problem for page in pages for problem in check(sources, page)]
    print("\n".join(found) or "clean")
    sys.exit(1 if found else 0)
