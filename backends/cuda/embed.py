"""Writes a file as an array of C++, without one an empty array: embed.py NAME OUTPUT [INPUT]."""

import struct
import sys


def main() -> None:
    name, target, *sources = sys.argv[1:]
    content = b""
    for source in sources:
        with open(source, "rb") as file:
            content += file.read()
    content += bytes(-len(content) % 8)
    words = [f"{word:#x}ULL" for (word,) in struct.iter_unpack("<Q", content)]
    lines = [",".join(words[i : i + 8]) for i in range(0, len(words), 8)]
    with open(target, "w", encoding="ascii") as file:
        file.write(f"alignas(16) constexpr std::array<unsigned long long, {len(words)}> {name}{{\n")
        file.write(",\n".join(lines) + "};\n")


main()
