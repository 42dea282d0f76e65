"""Checks that the C ABI is the one of abi.txt: functions, the versions of their symbols, constants, and the
layout of structs.

usage: abi.py [--write] INCLUDE ABI LIBRARY CC...

CC... is the command of the C compiler. --write adds what is new to ABI. A line that is gone or changed is always an error: programs that were
built before would break. docs/design/interfaces.md has the rule."""
import pathlib
import re
import subprocess
import sys
import tempfile

FUNCTION = re.compile(r"^((?:tutti_status|const char\*|int32_t) (tutti_\w+)\([^;]*\));", re.M)
CALLBACK = re.compile(r"^typedef ([^;{]*\(\*tutti_\w+\)[^;]*);", re.M)
STRUCT = re.compile(r"^typedef struct (tutti_\w+) \{(.*?)^\} \1;", re.M | re.S)
CONSTANT = re.compile(r"\b(TUTTI_[A-Z0-9_]+) = (-?\d+)")
MACRO = re.compile(r"^#define (TUTTI_[A-Z_]+) ([A-Z0-9_]+)$", re.M)


def one_line(text):
    return re.sub(r"\s+", " ", text).strip()


def fields(body):
    for member in body.split(";"):
        if pointer := re.search(r"\(\*(\w+)\)", member):
            yield pointer[1], one_line(member)
        elif member.strip():
            kind = one_line(member)
            for name in kind.split(","):
                yield re.search(r"(\w+)(\[\w+\])?$", name.strip())[1], kind


def of_headers(text):
    """The lines that the headers alone give, and the structs with their fields."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    lines = [f"function {one_line(declaration)}" for declaration, _ in FUNCTION.findall(text)]
    lines += [f"callback {one_line(callback)}" for callback in CALLBACK.findall(text)]
    lines += [f"constant {name} {value}" for name, value in CONSTANT.findall(text)]
    lines += [f"macro {name} {value}" for name, value in MACRO.findall(text) if not name.endswith("_ABI_VERSION")]
    return lines, {name: list(fields(body)) for name, body in STRUCT.findall(text)}


def layouts(include, structs, compiler):
    """Offsets of fields, of a program that the compiler makes."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "layout.c"), pathlib.Path(folder, "layout")
        prints = [f'printf("field {struct}.{name} %zu: %s\\n", offsetof({struct}, {name}), "{kind}");'
                  for struct, members in structs.items() for name, kind in members]
        source.write_text("#include <stdio.h>\n#include <tutti/c/tutti.h>\nint main(void) {\n" + "\n".join(prints) + "\nreturn 0; }\n")
        subprocess.run([*compiler, "-std=c99", "-I", include, source, "-o", program], check=True)
        return subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()


def symbols(library):
    listed = subprocess.run(["nm", "--dynamic", "--defined-only", "--with-symbol-versions", library],
                            capture_output=True, text=True, check=True).stdout
    return [f"symbol {name}" for name in re.findall(r" T (tutti_\S+)$", listed, re.M)]


def differences(text, abi, found):
    """Lines of errors, and the lines of `found` that `abi` lacks."""
    exported = {line[7:].split("@")[0] for line in abi + found if line.startswith("symbol ")}
    declared = {name for _, name in FUNCTION.findall(text)}
    gone = [f"gone or changed, which breaks programs built before: {line}" for line in abi if line not in found]
    gone += [f"exported, but not in the header: {name}" for name in sorted(exported - declared)]
    gone += [f"in the header, but not exported: {name}" for name in sorted(declared - exported)]
    return gone, [line for line in found if line not in abi]


def main(arguments):
    write = "--write" in arguments
    include, abi_file, library, *compiler = (a for a in arguments if a != "--write")
    abi_file = pathlib.Path(abi_file)
    text = "".join(header.read_text() for header in sorted(pathlib.Path(include, "tutti/c").glob("*.h")))
    abi = abi_file.read_text().splitlines() if abi_file.exists() else []
    lines, structs = of_headers(text)
    found = lines + layouts(include, structs, compiler) + symbols(library)
    gone, new = differences(text, abi, found)
    if write and not gone:
        abi_file.write_text("\n".join(sorted(abi + new)) + "\n")
        new = []
    print("\n".join(gone + [f"not in {abi_file.name}, add it with --write: {line}" for line in new]) or f"{len(found)} lines, all equal")
    return 1 if gone or new else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
