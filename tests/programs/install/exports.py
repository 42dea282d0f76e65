"""Checks that the shared library exports namespace tutti and the C ABI, and nothing of tutti::internal.
tests/programs/c/abi.py has the list of the C functions."""
import re
import subprocess
import sys

# Prefixes of a name in the demangled symbol.
KIND = r"(vtable|typeinfo|typeinfo name|VTT|guard variable|(non-virtual|virtual|covariant return) thunk)"
OURS = re.compile(rf"({KIND} (for|to) )?tutti::(?!internal::|c_abi::)|tutti_\w+@@TUTTI_C_\d+$|TUTTI_(CXX|C_\d+)$")


def exported(library):
    listed = subprocess.run(["nm", "--dynamic", "--defined-only", "--demangle", "--format=posix", library],
                            capture_output=True, text=True, check=True).stdout
    # "name kind value size"; the name may contain spaces.
    return [re.sub(r" [A-Za-z]( [0-9a-f]+){1,2} ?$", "", line) for line in listed.splitlines()]


def main(library, soname):
    symbols = exported(library)
    foreign = [symbol for symbol in symbols if not OURS.match(symbol)]
    dynamic = subprocess.run(["readelf", "--dynamic", library], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\(SONAME\).*\[(.+)\]", dynamic)
    for symbol in foreign:
        print(f"exported, but not of namespace tutti: {symbol}")
    if not symbols:
        print("exports nothing")
    if not found or found[1] != soname:
        print(f"SONAME is {found and found[1]}, expected {soname}")
    print(f"{len(symbols)} symbols exported")
    return 0 if symbols and not foreign and found and found[1] == soname else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
