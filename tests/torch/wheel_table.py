"""Runs a wheel on every system and every torch that it is for.

usage: wheel_table.py systems WHEEL [--keep DIR]
       wheel_table.py torch WHEEL [--minors 2.14,2.15] [--pythons PYTHON,...] [--keep DIR]

systems: in a root of Debian 11, 12, 13 and sid, made by mmdebstrap: the time from the first command to the first line of
`tutti bench -n 2`, the example 26_ctypes on two ranks, and programs in C and C++ against the wheel's headers and
libraries. Debian 11 has no compiler for the C++, and Python 3.9: pip is told to ignore that.

torch: for each interpreter and each minor version of torch, two ranks run init_process_group, a step of
DistributedDataParallel, and a loss, beside one process. PYTHON is an interpreter, or DIR:PYTHON one in a root that
`systems` kept. torch is installed alone: libraries stand for those of CUDA that it names, whose functions say that there
is no device. A version that torch does not have for a Python is a dash.

Needs root, mmdebstrap, apt with a mirror of Debian and pip with an index; takes about a minute a cell, and 3 GB."""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

from wheel_test import run

ROOT = pathlib.Path(__file__).resolve().parents[2]
RELEASES = {"bullseye": "11", "bookworm": "12", "trixie": "13", "sid": "sid"}
# What torch imports.
NEEDED = ["typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "filelock", "numpy",
          "setuptools"]

# Run by each of two ranks.
PROGRAM = r"""
import sys, warnings
import tutti
import torch, torch.distributed as dist
from tutti.losses import SmoothAPLoss
rank = int(sys.argv[1])
dist.init_process_group("tutti", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
x = torch.full((1000,), rank + 1.0)
dist.all_reduce(x)
assert torch.equal(x, torch.full((1000,), 3.0)), x

def model():
    torch.manual_seed(1)
    return torch.nn.Linear(40, 2)
inputs = torch.linspace(-1, 1, 320).reshape(2, 4, 40)
expected = model()
(sum(expected(each).pow(2).mean() for each in inputs) / 2).backward()
replica = torch.nn.parallel.DistributedDataParallel(model())
replica(inputs[rank]).pow(2).mean().backward()
torch.testing.assert_close(replica.module.weight.grad, expected.weight.grad)

torch.manual_seed(2)
logits, targets = torch.randn(8, 3), torch.arange(8) % 3
loss = SmoothAPLoss(num_classes=3)(logits[rank * 4:rank * 4 + 4].requires_grad_(), targets[rank * 4:rank * 4 + 4])
loss.backward()
every = [None, None]
dist.all_gather_object(every, loss.item())
assert every[0] == every[1] and 0 < every[0] < 1, every
transport = tutti.c10d.describe()
assert transport.startswith("shm"), transport
dist.destroy_process_group()
sys.stdout.write(f"right {sys.version.split()[0]} {torch.__version__}\n")   # At once: the ranks share a pipe.
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["systems", "torch"])
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--minors")
    parser.add_argument("--pythons", default=sys.executable)
    parser.add_argument("--keep", type=pathlib.Path)
    return parser.parse_args()


def within(root, script):
    """Runs a script of sh in a root, whose mounts end with it."""
    enter = 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" sh -ec "$1"'
    return run("unshare", "--mount", "--pid", "--fork", "sh", "-ec", enter, root, script)


def make_root(release, folder):
    root = folder / release
    if not root.exists():
        mirror = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian")
        compiler = "gcc,libc6-dev" if release == "bullseye" else "g++"
        run("mmdebstrap", "--variant=minbase", f"--include=python3,python3-venv,{compiler}",
            '--aptopt=Acquire::Check-Valid-Until "false"', '--aptopt=APT::Install-Recommends "false"', release, root,
            mirror.split()[0])
    return root


def check_system(release, wheel, folder):
    """One row of the table of systems."""
    root = make_root(release, folder)
    place = root / "trial"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for path in (wheel, ROOT / "docs/examples/00_tour/tour.cpp", ROOT / "docs/examples/25_c/in_c.c",
                 ROOT / "docs/examples/26_ctypes/in_python.py"):
        shutil.copy(path, place)
    # Debian 11 has Python 3.9.
    any_python = "--ignore-requires-python" if release == "bullseye" else ""
    started = time.monotonic()
    first = within(root, f"cd /trial; python3 -m venv v; v/bin/pip install -q --no-index {any_python} *.whl;"
                         "v/bin/tutti bench -n 2 2>/dev/null | head -1").splitlines()[-1]
    seconds = time.monotonic() - started
    assert first.startswith("tutti bench"), first
    python = within(root, "python3 --version").split()[1]
    output = within(root, "cd /trial; v/bin/tutti run -n 2 v/bin/python in_python.py")
    assert output.count("sum [3.0, 20.0]") == 2, output
    within(root, "cd /trial; cc in_c.c $(v/bin/tutti-config --cflags --libs tutti-c) -o in_c; "
                 "v/bin/tutti run -n 2 ./in_c")
    tour = "-"
    if release != "bullseye":
        within(root, "cd /trial; c++ -std=c++20 -Wall -Werror tour.cpp $(v/bin/tutti-config --cflags --libs) -o tour; "
                     "v/bin/tutti run -n 2 ./tour")
        tour = within(root, "c++ -dumpfullversion").strip()
    libc = re.search(r"[0-9.]+$", within(root, "ldd --version").splitlines()[0])[0]
    print(f"| {RELEASES[release]} | {libc} | {python} | {seconds:.1f} s | {tour} |", flush=True)


def stand_in(torch, folder):
    """Libraries for those of CUDA that torch names: every function returns 100, cudaErrorNoDevice."""
    libraries = list((torch / "lib").glob("*.so*"))
    names, files, wanted, defined = set(), {}, set(), set()
    for path in libraries:
        names |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", path)))
        for part in run("readelf", "-VW", path).split("File: ")[1:]:
            files.update((version, part.split()[0]) for version in re.findall(r"Name: (\S+)", part))
        for line in run("nm", "-D", path).splitlines():
            kind, symbol = line.split()[-2:]
            (wanted if kind == "U" else defined).add(symbol)
    of_cuda = sorted(name for name in names - {path.name for path in libraries} if re.match(r"lib(cu|nv|nccl)", name))
    for name in of_cuda:
        script, functions = [], []
        for version in [version for version in files if files[version] == name]:
            mine = sorted(symbol.split("@")[0] for symbol in wanted if symbol.partition("@")[2] == version)
            script.append(f"{version} {{ global: {'; '.join(mine + ['none'])}; }};")
            functions += mine
        if name == of_cuda[0]:   # Symbols without a version are in any library.
            functions += sorted(symbol for symbol in wanted - defined
                                if "@" not in symbol and re.match(r"_*(cu|nccl|nv)", symbol))
        (folder / "versions").write_text("\n".join(script) + "\n")
        (folder / "stand_in.s").write_text(".text\n" + "".join(f".globl {each}\n{each}:\n" for each in functions) +
                                           "mov $100, %eax\nret\n.section .note.GNU-stack,\"\"\n")
        run("cc", "-shared", "-nostdlib", folder / "stand_in.s", f"-Wl,-soname,{name}", "-o", folder / name,
            *([f"-Wl,--version-script={folder / 'versions'}"] if script else []))


def check_torch(python, minor, wheel, folder):
    """One cell: "right", or None if torch has no wheel for this Python."""
    root, _, program = python.rpartition(":")
    start = (lambda script: within(root, script)) if root else lambda script: run("sh", "-ec", script)
    inside = pathlib.Path("/cell") if root else folder
    outside = pathlib.Path(root + "/cell") if root else folder
    version = start(f"{program} -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").strip()
    packages = outside / "packages"
    shutil.rmtree(outside, ignore_errors=True)
    packages.mkdir(parents=True)
    get = [sys.executable, "-m", "pip", "install", "-q", "--no-cache-dir", "--no-compile", "--no-deps",
           "--only-binary=:all:", "--python-version", version, "--target", packages,
           *(f"--platform=manylinux_2_{libc}_x86_64" for libc in (31, 28, 17))]
    found = subprocess.run([*get, f"torch=={minor}.*", *NEEDED], text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, check=False)
    if "No matching distribution found for torch" in found.stdout:
        return version, "-"
    assert found.returncode == 0, found.stdout
    run(*get, "--no-index", wheel)
    stand_in(packages / "torch", outside)
    (outside / "program.py").write_text(PROGRAM)
    # -S: without packages of the interpreter, which may have another torch and its libraries.
    ranks = " & ".join(f"{program} -S program.py {rank} {inside}/store" for rank in (0, 1))
    output = start(f"cd {inside}; export PYTHONPATH={inside}/packages LD_LIBRARY_PATH={inside}; "
                   f"timeout 300 sh -c '{ranks}; wait'")
    right = re.findall(r"^right \S+ (\S+)", output, re.MULTILINE)
    assert len(right) == 2, output
    return version, right[0]


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        folder = (options.keep or pathlib.Path(folder)).resolve()
        if options.part == "systems":
            print("| Debian | glibc | Python | first line of `tutti bench -n 2` | tour with GCC |\n|---|---|---|---|---|")
            for release in RELEASES:
                check_system(release, options.wheel, folder)
            return 0
        names = "\n".join(zipfile.ZipFile(options.wheel).namelist())
        minors = options.minors.split(",") if options.minors else [
            f"2.{minor}" for minor in sorted(map(int, re.findall(r"torch_2_(\d+)/libtutti_torch.so", names)))]
        failed = 0
        for minor in minors:
            for python in options.pythons.split(","):
                try:
                    print(minor, *check_torch(python, minor, options.wheel, folder / "cell"), flush=True)
                except AssertionError as error:
                    failed += 1
                    print(minor, python, "failed:", error, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
