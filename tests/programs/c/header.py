"""Compiles each C header as C99 and as C++98 with all warnings as errors, alone and in a program that includes
them twice.

usage: header.py INCLUDE COMPILER..."""
import pathlib
import shutil
import subprocess
import sys

PROGRAM = """#include <tutti/c/tutti.h>
#include <tutti/c/tutti.h>
int main(void) {
  tutti_call_options options;
  tutti_array array = tutti_vector("", TUTTI_U8, 0);
  TUTTI_INIT(options);
  return tutti_all_reduce(0, &array, &array, TUTTI_SUM, &options, 0) == TUTTI_INVALID_ARGUMENT ? 0 : 1;
}
"""
STRICT = ["-Wall", "-Wextra", "-pedantic", "-Wshadow", "-Wcast-qual", "-Werror", "-fsyntax-only"]
LANGUAGES = {"c99": "c", "c11": "c", "c++98": "c++", "c++20": "c++"}


def main(include, *compilers):
    failed = []
    alone = [f"#include <tutti/c/{header.name}>\n" for header in pathlib.Path(include, "tutti/c").glob("*.h")]
    found = [compiler for compiler in compilers if shutil.which(compiler)]
    for compiler in found:
        for standard, language in LANGUAGES.items():
            for text in [*alone, PROGRAM]:
                done = subprocess.run([compiler, "-x", language, f"-std={standard}", *STRICT, "-I", include, "-"],
                                      input=text, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    failed.append(f"{compiler} -std={standard}:\n{done.stderr}")
    print("\n".join(failed) or f"compiles with {' '.join(found)}")
    if not found:
        return 77
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
