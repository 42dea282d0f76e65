"""Checks that every function of the C++ API that programs call has a C function, or a reason in without_c.txt.

usage: verbs.py INCLUDE REASONS TEST...

A public member `f` of a class, or a free function `f`, has the C function tutti_f, or tutti_<prefix>_f with
the prefix of its class. The async form of a verb is its C function with a `work`. A line of REASONS is
"NAME: reason"; a line for a name that has a C function, or that the headers do not have, is an error. A header whose
functions are not compared has a line, too, or is one of values, adapters or backends."""
import pathlib
import re
import sys

# Class -> prefixes of its C functions.
CLASSES = {
    "process_group.hpp": {"ProcessGroup": ["", "group_"]},
    "work.hpp": {"Work": ["work_"]},
    "pending.hpp": {"Pending": ["work_"]},
    "coalesce.hpp": {"Coalesce": ["coalesce_"]},
    "store/store.hpp": {"Store": ["store_"]},
    "ddp/gradient_reducer.hpp": {"GradientReducer": ["reducer_"]},
}
FREE = ["init.hpp", "gather.hpp", "row_layout.hpp", "coalesce.hpp", "sync.hpp", "metrics.hpp", "autograd.hpp",
        "store/store.hpp", "ddp/hooks.hpp"]


VALUES = {"call_options", "cluster", "deadline", "device", "dtype", "error", "format", "grad_scale", "group_options", "half",
          "log", "losses/loss", "memory", "operation", "reduce_op", "registration", "rows", "shape", "tensor",
          "trace", "training", "tutti", "version"}


def without_comments(text):
    return re.sub(r"//[^\n]*", "", re.sub(r"^#.*$", "", text, flags=re.M))


def without_bodies(text, depth):
    """The text outside of braces that are nested deeper than `depth`; each body becomes ';'."""
    out, level = [], 0
    for character in text:
        if character == "{":
            level += 1
        if level <= depth:
            out.append(character)
        if character == "}":
            level -= 1
            if level == depth:
                out.append(";")
    return "".join(out)


def function_names(text):
    text = re.sub(r"\[\[.*?\]\]", " ", text)
    for declaration in text.split(";"):
        found = re.search(r"(?<![\w:~])(?:operator\s*\(\)|(~?[a-zA-Z_]\w*))\s*\(", declaration)
        if found and not re.search(r"\b(requires|friend|using|concept|= (default|delete))\b", declaration):
            yield found[1] or "operator()"


def members(text, name):
    start = re.search(rf"^class (?:\[\[nodiscard\]\] )?{name}\b[^;{{]*{{", text, re.M)
    body = without_bodies(text[start.end():], 0).split("};")[0]
    body = re.split(r"^}", text[start.end():], maxsplit=1, flags=re.M)[0]
    public = re.split(r"^ (?:private|protected):", body, flags=re.M)[0]
    return {found for found in function_names(without_bodies(public, 0)) if not found.startswith("~") and found != name}


def free_functions(text):
    text = re.sub(r"namespace\s*(\[\[[^{]*\]\])?\s*[\w:]*\s*{", "", text)
    return set(function_names(without_bodies(text, 0)))


def main(include, reasons, tests):
    c_functions = set(re.findall(r"\btutti_(\w+)\(", "".join(header.read_text() for header in include.glob("c/*.h"))))
    reasons = dict(line.split(": ", 1) for line in reasons.read_text().splitlines() if line and not line.startswith("#"))
    lacking, count = set(), 0
    headers = {str(header.relative_to(include)) for header in include.rglob("*.hpp")}
    lacking |= {header for header in headers - {*CLASSES, *FREE} if header.removesuffix(".hpp") not in VALUES
                and not header.startswith(("adapters/", "backend/"))}
    for header in sorted({*CLASSES, *FREE}):
        text = without_comments((include / header).read_text())
        names = {(f"{of}::{name}", name, tuple(prefixes))
                 for of, prefixes in CLASSES.get(header, {}).items() for name in members(text, of)}
        if header in FREE:
            space = "autograd::" if header == "autograd.hpp" else "metrics::" if header == "metrics.hpp" else ""
            names |= {(space + name, name, ("",)) for name in free_functions(text)}
        for full, name, prefixes in names:
            count += 1
            stem = name.removesuffix("_async")
            if full.startswith("autograd::") or not any(prefix + stem in c_functions for prefix in prefixes):
                lacking.add(full)
    problems = [f"no C function, and no reason: {name}" for name in sorted(lacking - set(reasons))]
    problems += [f"has a C function, or is in no header: {name}" for name in sorted(set(reasons) - lacking)]
    called = set(re.findall(r"tutti_(\w+)\(", "".join(test.read_text() for test in tests)))
    # The test program makes calls by macros: CALL(verb, ...) and GATHER(verb, ...).
    called |= set(re.findall(r"\b(?:CALL|GATHER)\((\w+)", "".join(test.read_text() for test in tests)))
    problems += [f"no test calls tutti_{name}()" for name in sorted(c_functions - called)]
    problems += [f"{name}: an empty reason" for name, why in reasons.items() if len(why) < 10]
    print("\n".join(problems) or f"{count} functions, {len(lacking)} without a C function")
    return 1 if problems or count < 100 else 0


if __name__ == "__main__":
    sys.exit(main(*map(pathlib.Path, sys.argv[1:3]), [pathlib.Path(name) for name in sys.argv[3:]]))
