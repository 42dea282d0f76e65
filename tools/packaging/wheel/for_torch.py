"""The folders of a wheel that serve torch: for a minor version libtutti_torch.so, and _c10d for each CPython."""
import concurrent.futures
import pathlib
import re
import shutil
import sys
import zipfile

from sysroot import COMPILER, flags, run

SOURCES = "lib/bindings/torch"
LINKED = ["torch_cpu", "c10", "torch_python"]
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
OF_DEBIAN = {"3.11": "bookworm", "3.13": "trixie", "3.14": "sid"}


def python_headers(version, folder, apt):
    """Folders with the headers of a CPython: installed beside this one or found in PATH, else of Debian."""
    beside = sorted(pathlib.Path(sys.base_prefix).parent.glob(f"*/include/python{version}/Python.h"))
    if beside:
        return [beside[0].parent]
    program = shutil.which(f"python{version}")
    if program:
        found = pathlib.Path(run(program, "-c", "import sysconfig; print(sysconfig.get_path('include'))").strip())
        if (found / "Python.h").exists():
            return [found]
    if version in OF_DEBIAN:
        apt.unpack(folder / "python", OF_DEBIAN[version], f"libpython{version}-dev")
        return [folder / "python/usr/include" / f"python{version}", folder / "python/usr/include"]
    raise SystemExit(f"CPython {version}: no headers; a python{version} in PATH brings them, or --python leaves it out")


def fetch(minor, folder):
    """Headers and libraries of the newest torch of a minor version. Returns their folder and the oldest CPython."""
    target = folder / "torch" / minor
    if not (target / "complete").exists():
        shutil.rmtree(target, ignore_errors=True)
        run(sys.executable, "-m", "pip", "download", f"torch=={minor}.*", "--no-deps", "--no-cache-dir",
            "--only-binary=:all:", "--python-version=3.12", "--platform=manylinux_2_28_x86_64", "-d", target)
        wheel = next(target.glob("*.whl"))
        libraries = [f"torch/lib/lib{name}.so" for name in LINKED]
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith("torch/include/") or name in libraries or name.endswith(".dist-info/METADATA"):
                    archive.extract(name, target)
        wheel.unlink()
        (target / "complete").touch()
    metadata = next(target.glob("*.dist-info/METADATA")).read_text()
    return target / "torch", re.search(r"Requires-Python: >=\s*([0-9.]+)", metadata)[1]


def build(minor, pythons, tree, folder, root, prefix, place, apt):
    """Builds the folder of a minor version in the package `place`, over the libraries installed in `prefix`."""
    torch, oldest = fetch(minor, folder)
    headers = {version: python_headers(version, folder, apt) for version in pythons
               if int(version[2:]) >= int(oldest.split(".")[1])}
    target = place / f"torch_{minor.replace('.', '_')}"
    objects = folder / "objects" / minor
    objects.mkdir(parents=True, exist_ok=True)
    target.mkdir()
    unit = objects / "all.cpp"
    unit.write_text("".join(f'#include "{path}"\n' for path in sorted((tree / SOURCES).glob("*.cpp"))
                            if path.name != "python.cpp"))
    compile_flags, link_flags = flags(root, tree, folder)
    compiler = [*(["ccache"] if shutil.which("ccache") else []), COMPILER, *compile_flags, "-std=c++20", "-O2",
                "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
                "-DTORCH_API_INCLUDE_EXTENSION_H", f"-I{prefix}/include", f"-I{tree}/lib/bindings",
                f"-isystem{torch}/include", f"-isystem{torch}/include/torch/csrc/api/include"]
    linker = [COMPILER, *link_flags, "-shared", "-s", "-Wl,--as-needed", f"-L{prefix}/lib", f"-L{torch}/lib"]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(run, *compiler, "-c", unit, "-o", objects / "all.o")]
        for version, folders in headers.items():
            jobs.append(pool.submit(run, *compiler, *(f"-isystem{path}" for path in folders), "-c",
                                    tree / SOURCES / "python.cpp", "-o", objects / f"{version}.o"))
        for job in jobs:
            job.result()
    run(*linker, objects / "all.o", "-ltutti_training", "-ltutti", "-ltorch_cpu", "-lc10", "-Wl,--no-undefined",
        "-Wl,-soname,libtutti_torch.so", "-Wl,-rpath,$ORIGIN/../lib", "-o", target / "libtutti_torch.so")
    for version in headers:  # Functions of Python stay undefined: they are in the interpreter.
        run(*linker, objects / f"{version}.o", f"-L{target}", "-ltutti_torch", "-ltorch_python", "-ltorch_cpu", "-lc10",
            f"-Wl,-rpath-link,{prefix}/lib", "-Wl,-rpath,$ORIGIN", "-o",
            target / f"_c10d.cpython-{version.replace('.', '')}-x86_64-linux-gnu.so")
