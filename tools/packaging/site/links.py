"""Finds links and anchors of a site that lead nowhere, and pages that load something from another host.

usage: links.py FOLDER"""
import html
import pathlib
import re
import sys
from urllib.parse import unquote, urldefrag

TAG = re.compile(r"<(a|area|base|form|iframe|img|link|script|source)\b([^>]*)>", re.I)
ATTRIBUTE = re.compile(r"""\b(href|src|rel)\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.I)
ANCHOR = re.compile(r"""\b(?:id|name)\s*=\s*(?:"([^"]+)"|'([^']+)')""")
SCRIPT = re.compile(r"(<script\b[^>]*>).*?</script>|<!--.*?-->", re.S | re.I)
ELSEWHERE = re.compile(r"[a-z]+:|//", re.I)
STYLE = re.compile(r"url\(\s*['\"]?((?:https?:)?//[^)'\"]*)|@import\s+['\"]([^'\"]*)")
LINKS_TO_PRIVATE = "nested-classes"  # Doxygen links to the list of a class's classes, also if all of them are private.
NAVIGATES = ("canonical", "prev", "next", "edit")


def references(text):
    """Whether a page loads it, and its address: the links and resources of a page."""
    for tag, attributes in TAG.findall(text):
        values = {name.lower(): html.unescape(double or single) for name, double, single in ATTRIBUTE.findall(attributes)}
        loads = tag.lower() not in ("a", "area") and values.get("rel") not in NAVIGATES
        yield from ((loads, values[name]) for name in ("href", "src") if name in values)


def check(site):
    pages = {path: SCRIPT.sub(r"\1", path.read_text(errors="replace")) for path in sorted(site.rglob("*.html"))}
    anchors = {path: {double or single for double, single in ANCHOR.findall(text)} for path, text in pages.items()}
    for path, text in pages.items():
        for loads, address in sorted(set(references(text))):
            name = f"{path.relative_to(site)}: {address}"
            if ELSEWHERE.match(address):
                if loads and not address.startswith(("data:", "javascript:")):
                    yield f"{name} is loaded from another host"
                continue
            target, anchor = urldefrag(address)
            target = unquote(target)
            file = path if not target else (site / target[1:] if target.startswith("/") else path.parent / target).resolve()
            if file.is_dir():
                file /= "index.html"
            if not file.exists():
                yield f"{name} leads nowhere"
            elif anchor != LINKS_TO_PRIVATE and anchor and file in anchors and html.unescape(unquote(anchor)) not in anchors[file]:
                yield f"{name} has no such anchor"
    for path in site.rglob("*.css"):
        for address in STYLE.findall(path.read_text()):
            yield f"{path.relative_to(site)}: loads {''.join(address)}"


if __name__ == "__main__":
    found = list(check(pathlib.Path(sys.argv[1]).resolve()))
    print("\n".join(found) or "clean")
    sys.exit(1 if found else 0)
