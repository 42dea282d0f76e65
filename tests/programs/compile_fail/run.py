"""Compiles a file once unchanged, which must succeed, and once per case, which must fail.

A case is `#ifdef NAME  // error: REGEX`, the wrong line, `#else`, the right one, `#endif`. With
NAME defined the compiler must report an error that matches the regex, and none in another line of
the file. Prints TAP."""
import os
import re
import subprocess
import sys
import tempfile

CASE = re.compile(r"#ifdef (\w+)  // error: (.+)")
FLAGS = ["-std=c++20", "-Werror=unused-result"]
source, *compiler = sys.argv[1:]


def compile_with(*flags):
    """The errors by line of the source; an error elsewhere has the line 0."""
    command = [*compiler, *FLAGS, "-include", header, "-fsyntax-only", *flags, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    errors = [(int(line) if file == source else 0, text) for file, line, text in
              re.findall(r"^(.+?):(\d+):(?:\d+:)? (?:fatal )?error: (.+)$", done.stderr, re.M)]
    return done.returncode, errors


def cases():
    found = []
    for number, line in enumerate(open(source), 1):
        if match := CASE.match(line):
            found.append([match[1], match[2], number, 0])
        elif line.startswith("#else"):
            found[-1][3] = number
    return found


def report(number, good, name, wanted, errors):
    print(f"{'ok' if good else 'not ok'} {number} - {name}")
    if not good:
        print(f"# wanted: {wanted}")
        for line, text in errors:
            print(f"# got in line {line}: {text}")


with tempfile.TemporaryDirectory() as folder:
    header = folder + "/includes.hpp"  # Precompiled, because all cases have the same.
    with open(header, "w") as file:
        file.writelines(line for line in open(source) if line.startswith("#include"))
    subprocess.run([*compiler, *FLAGS, "-x", "c++-header", header, "-o", header + ".gch"], check=True)
    listed = cases()
    print(f"1..{len(listed) + 1}")
    code, errors = compile_with()
    report(1, listed and code == 0, "as it stands", "no error", errors)
    for index, (name, pattern, begin, end) in enumerate(listed, 2):
        code, errors = compile_with("-D" + name)
        good = code != 0 and any(re.search(pattern, text) for _, text in errors) and \
            all(line == 0 or begin < line < end for line, _ in errors)
        report(index, good, name, f"in lines {begin + 1} to {end - 1} alone: {pattern}", errors)
