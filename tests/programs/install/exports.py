"""Checks that the shared libraries export namespace tutti and the C ABI, and of tutti::internal the seam alone.
tests/programs/c/abi.py has the list of the C functions."""
import pathlib
import re
import subprocess
import sys

# Prefixes of a name in the demangled symbol.
SEAM = """check_host_may_wait copy_past_cache end_calls fold gather_error gather_host_arrays host_call kernel_target
    last_level_cache staging_memory undescribed Reader Writer""".split()
KIND = r"(vtable|typeinfo|typeinfo name|VTT|guard variable|(non-virtual|virtual|covariant return) thunk)"
OURS = re.compile(rf"({KIND} (for|to) )?tutti::(?!internal::(?!({'|'.join(SEAM)})[:(])|c_abi::)|tutti_\w+@@TUTTI_C_\d+$|TUTTI_(CXX|C_\d+)$")


def exported(library):
    listed = subprocess.run(["nm", "--dynamic", "--defined-only", "--demangle", "--format=posix", library],
                            capture_output=True, text=True, check=True).stdout
    # "name kind value size"; the name may contain spaces.
    return [re.sub(r" [A-Za-z]( [0-9a-f]+){1,2} ?$", "", line) for line in listed.splitlines()]


def main(soversion, *libraries):
    failed = len(libraries) != 3
    for library in libraries:
        soname = pathlib.Path(library).name.split(".so")[0] + ".so." + soversion
        symbols = exported(library)
        foreign = [symbol for symbol in symbols if not OURS.match(symbol)]
        dynamic = subprocess.run(["readelf", "--dynamic", library], capture_output=True, text=True, check=True).stdout
        found = re.search(r"\(SONAME\).*\[(.+)\]", dynamic)
        for symbol in foreign:
            print(f"{library}: exported, but not of namespace tutti: {symbol}")
        print(f"{library}: SONAME {found and found[1]}, {len(symbols)} symbols exported")
        failed |= not symbols or bool(foreign) or not found or found[1] != soname
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
