"""Finds words that do not belong in a finished tree: promises, paths of one machine, and
placeholders in documents."""
import re

import tree

# Split, so that this file does not contain the words.
PROMISE = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
PATH = re.compile(r"(?<![\w.$}~/-])/((work|root|farm)(?![\w-])|home/\w+|tmp/build)")
PLACE = re.compile(r"@\w+@")


def check(root):
    found = []
    for path in tree.files(root):
        for number, line in tree.lines(path):
            if path.suffix == ".md" and (match := PLACE.search(line)):
                found.append(f"{path.relative_to(root)}:{number}: '{match[0]}' has not been filled in")
            if match := PROMISE.search(line):
                found.append(f"{path.relative_to(root)}:{number}: '{match[0]}': finish it or open an issue")
            if match := PATH.search(line):
                found.append(f"{path.relative_to(root)}:{number}: '{match[0]}' is a path of one machine")
    return found


if __name__ == "__main__":
    tree.run(check)
