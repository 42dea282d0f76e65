"""Finds words that do not belong in a finished tree: promises, paths of one machine, and
placeholders in documents. Finds private words where docs/glossary.md has the field's."""
import re

import tree

# Split, so that this file does not contain the words.
PROMISE = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
PATH = re.compile(r"(?<![\w.$}~/-])/((work|root|farm)(?![\w-])|home/\w+|tmp/build)")
PLACE = re.compile(r"@\w+@")

RANKS = "a rank, a peer, a thread or a call"
# Parts of names (HangUps, hang_ups_), and what to say instead.
NAMES = {
    "tro" "uble": "transport error",
    "hang" "up": "connection watcher",
    "gre" "et": "handshake",
    "gre" "eting": "handshake",
    "kn" "ock": "handshake",
    "str" "anger": "unauthenticated peer",
    "ca" "rd": "peer info",
    "of" "fer": "request",
    "announce" "ment": "metadata exchange",
    "sa" "id": "output, or the record that it is",
    "kee" "per": "orphan reaper",
    "meet" "ing": "barrier, rendezvous",
    "se" "at": "rank assignment",
    "ver" "dict": "result, exit status",
    **{word + "body": RANKS for word in ("no", "some", "every", "any")},
    "who" "ever": RANKS,
}
# Whole names.
CODE = [
    (re.compile(r"\b\w*(comes_al" r"ong|stands?_st" r"ill|let_g" r"o)\b"), "inlined, blocked, released"),
    (re.compile(r"\b(class|struct|using) \w*Pla" r"ce\b"), "what it is: an index, a location, a listener"),
    (re.compile(r"\b(class|struct) Val" r"ue\b"), "MaybeOwned"),
    (re.compile(r"\border\(str" r"eam\)"), "block_stream(stream)"),
]
# Of comments, texts and documents.
TEXTS = [
    (re.compile(r"\bhang-?" r"ups?\b", re.I), "ended connection"),
    (re.compile(r"\bgre" r"et(s|ed|ings?)?\b", re.I), "handshake"),
    (re.compile(r"\bkn" r"ock(s|ed|ing)?\b", re.I), "handshake"),
    (re.compile(r"\bstr" r"angers?\b", re.I), "unauthenticated peer"),
    (re.compile(r"\bver" r"dicts?\b", re.I), "result, exit status"),
    (re.compile(r"\bmeet" r"ings?\b", re.I), "barrier, rendezvous"),
    (re.compile(r"\b(stand|stands|stood) st" r"ill\b", re.I), "does not run"),
    (re.compile(r"\b(let|lets|letting) g" r"o\b", re.I), "release, reset, drain"),
    (re.compile(r"\bcall(s|ed)? the r" r"oll\b", re.I), "collect status"),
    (re.compile(r"\b(come|comes|came|travel|travels) al" r"ong\b", re.I), "inlined"),
    (re.compile(r"(^|[/.:;] )By wh" r"at\b"), "a sentence with its subject first"),
    (re.compile(r"\b(no|some|every|any)bo" r"dy\b|\bwho" r"ever\b", re.I), RANKS),
]

CXX = tree.CXX + (".cu", ".h", ".inc")
# A comment or a literal of C++.
TEXT = re.compile(r'//.*|/\*.*?\*/|"(?:\\.|[^"\\])*"')
OWN = ("tests/lint/words.py", "tests/lint/self_test.py")
RECORDED = re.compile(r"tests/data/")
SOURCES = re.compile(r"(include|lib|backends|tools|tests)/")


def parts(name):
    """"SomeNames_" is some, name: in lower case and without a plural's s."""
    for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name):
        part = part.lower()
        yield part
        if part.endswith("s"):
            yield part[:-1]


def private_names(code):
    for name in re.findall(r"[A-Za-z_]\w*", code):
        for part in parts(name):
            if part in NAMES:
                yield name, NAMES[part]
                break
    for pattern, instead in CODE:
        for match in pattern.finditer(code):
            yield match[0], instead


def private_words(text):
    for pattern, instead in TEXTS:
        for match in pattern.finditer(text):
            yield match[0].strip(), instead


def vocabulary(name, text):
    """The private words of a line: its names, and its words in comments and literals."""
    if name in OWN or RECORDED.match(name):
        return
    if name.endswith(CXX):
        yield from private_names(TEXT.sub(" ", text))
        for match in TEXT.finditer(text):
            yield from private_words(match[0])
        return
    yield from private_words(text)


def check(root):
    found = []
    for path in tree.files(root):
        name = str(path.relative_to(root))
        if SOURCES.match(name):
            for word, instead in private_names(name.replace("/", " ")):
                found.append(f"{name}: '{word}' in its path: say {instead} (docs/glossary.md)")
        for number, line in tree.lines(path):
            if path.suffix == ".md" and (match := PLACE.search(line)):
                found.append(f"{name}:{number}: '{match[0]}' has not been filled in")
            if match := PROMISE.search(line):
                found.append(f"{name}:{number}: '{match[0]}': finish it or open an issue")
            if match := PATH.search(line):
                found.append(f"{name}:{number}: '{match[0]}' is a path of one machine")
            for word, instead in vocabulary(name, line):
                found.append(f"{name}:{number}: '{word}': say {instead} (docs/glossary.md)")
    return found


if __name__ == "__main__":
    tree.run(check)
