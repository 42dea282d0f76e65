"""Compiles the backend of torch.distributed against the headers of other versions of torch, and configures it for one
that pyproject.toml does not name.

usage: versions_test.py refusals | headers --compiler CXX...

TUTTI_TEST_TORCH_WHEELS names a folder with wheels of torch, without which `headers` is skipped. Those for macOS are the
smallest, and their headers are the same:
    pip download torch==2.11.0 --no-deps --platform macosx_11_0_arm64 --python-version 3.12 --only-binary=:all:"""
import argparse
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
FROM, BEFORE = re.search(r'"torch>=2\.(\d+),<2\.(\d+)"', (ROOT / "pyproject.toml").read_text()).groups()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["refusals", "headers"])
    parser.add_argument("--compiler", nargs="+", default=["c++"])
    return parser.parse_args()


def check_headers(options, wheel, folder):
    """All sources as one, in some 30 seconds."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith("torch/include/")])
    sources = sorted((ROOT / "lib/bindings/torch").glob("*.cpp"))
    unit = pathlib.Path(folder, "all.cpp")
    unit.write_text("".join(f'#include "{source}"\n' for source in sources), encoding="utf-8")
    includes = [f"-I{ROOT / of}" for of in ("include", "lib/bindings")] + [f"-I{sysconfig.get_paths()['include']}"]
    includes += [f"-isystem{pathlib.Path(folder, 'torch/include', of)}" for of in ("", "torch/csrc/api/include")]
    done = subprocess.run([*options.compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                           "-DTORCH_API_INCLUDE_EXTENSION_H", *includes, str(unit)],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, f"{wheel}:\n{done.stdout[:6000]}"


def check_refused(version, folder):
    """Meson refuses the version in one line."""
    torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    package = pathlib.Path(folder, "package", "torch")
    package.mkdir(parents=True)
    for name in ("include", "lib"):
        (package / name).symlink_to(torch / name)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n', encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "mesonbuild.mesonmain", "setup", os.path.join(folder, "build"),
                           str(ROOT), "-Dtorch_door=enabled", "-Dtests=disabled", "-Dexamples=disabled",
                           "-Dtool=disabled", "-Dcuda=none"],
                          env={**os.environ, "PYTHONPATH": str(package.parent)}, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    wanted = f"torch_door serves torch >=2.{FROM},<2.{BEFORE}, and this is torch {version}"
    assert done.returncode != 0 and wanted in done.stdout, done.stdout[-2000:]


def main():
    options = arguments()
    if options.part == "refusals":
        for version in (f"2.{int(FROM) - 1}.0", f"2.{BEFORE}.1"):
            with tempfile.TemporaryDirectory() as folder:
                check_refused(version, folder)
                print(f"refused: {version}", flush=True)
        return 0
    wheels = sorted(pathlib.Path(os.environ.get("TUTTI_TEST_TORCH_WHEELS") or os.devnull).glob("torch-2.*.whl"))
    if not wheels:
        print("skipped: TUTTI_TEST_TORCH_WHEELS names no folder with wheels of torch")
        return SKIPPED
    for wheel in wheels:
        minor = int(wheel.name.split(".")[1])
        if int(FROM) <= minor < int(BEFORE):
            with tempfile.TemporaryDirectory() as folder:
                check_headers(options, wheel, folder)
                print(f"compiled: {wheel.name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
