"""The programs of a wheel: tutti, and tutti-config, which says how to compile with its libraries. A module of its own,
because the package tutti imports torch."""
import argparse
import importlib.metadata
import os
import pathlib
import sys

PACKAGE = pathlib.Path(__file__).resolve().parent / "tutti"
LINKED = {"tutti": ["tutti"], "tutti-training": ["tutti_training", "tutti"], "tutti-c": ["tutti_c"]}


def tool():
    """Becomes the program, under the name of this one, beside which it finds tutti-report."""
    os.execv(PACKAGE / "bin" / "tutti", [os.path.abspath(sys.argv[0]), *sys.argv[1:]])


def config():
    """Prints what a compiler, a linker or CMake needs."""
    parser = argparse.ArgumentParser(prog="tutti-config", description="How to compile with the libraries of the wheel: "
                                     "c++ -std=c++20 program.cpp $(tutti-config --cflags --libs)")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"{', '.join(LINKED)}; default: tutti")
    parser.add_argument("--cflags", action="store_true", help="flags of the compiler")
    parser.add_argument("--libs", action="store_true", help="flags of the linker, with the run path")
    parser.add_argument("--cmakedir", action="store_true", help="folder for CMake's tutti_DIR")
    parser.add_argument("--version", action="version", version=importlib.metadata.version("tutti-collectives"))
    options = parser.parse_args()
    unknown = [name for name in options.modules if name not in LINKED]
    if unknown:
        parser.error(f"no module {', '.join(unknown)}; there are: {', '.join(LINKED)}")
    if not (options.cflags or options.libs or options.cmakedir):
        parser.error("nothing to print: --cflags, --libs, --cmakedir or --version")
    if any(map(str.isspace, str(PACKAGE))) and (options.cflags or options.libs):
        parser.error(f"{PACKAGE} has a space, at which a shell would cut the flags; install the wheel in another folder")
    libraries = PACKAGE / "lib"
    words = [f"-I{PACKAGE / 'include'}"] if options.cflags else []
    if options.libs:
        linked = dict.fromkeys(name for module in options.modules or ["tutti"] for name in LINKED[module])
        words += [f"-L{libraries}", f"-Wl,-rpath,{libraries}", *(f"-l{name}" for name in linked)]
    words += [str(libraries / "cmake" / "tutti")] if options.cmakedir else []
    print(" ".join(words))
