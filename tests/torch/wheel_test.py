"""Builds the wheel, installs it in a new virtual environment, and uses it there from two processes by its entry point
(before torch 2.14 by import), by the tests of the losses, and under Lightning where that is installed. Without torch
the example 26_ctypes runs.

usage: wheel_test.py [--build-dir DIR] [--wheel FILE | --all-pythons] [--setup-arg ARG]... [--without-gloo]

Needs torch, pip and meson-python (with meson and ninja) in the Python that runs it, else it is skipped.
--build-dir keeps the build, so that the next one is short. --wheel tests an existing wheel. --all-pythons builds that of
tools/packaging/wheel for the newest torch; its binaries are checked as the build does. --without-gloo: the machine has
no Gloo, so the wheel has none either; that of tools/packaging/wheel has none."""
import argparse
import datetime
import importlib.util
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
sys.path.append(str(ROOT / "tools/packaging/wheel"))

# Run by each rank. The order says what is imported first, and whose group is the default one.
PROGRAM = r"""
import datetime, os, pathlib, sys
order, rank, port, transport, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
if order == "tutti":
    import tutti
import torch, torch.distributed as dist
assert ("tutti" in sys.modules) == (order == "tutti")
if int(torch.__version__.split(".")[1]) < 14:
    import tutti  # Before 2.14 torch does not look at entry points.
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=60))
first, second = ("gloo", "tutti") if order == "gloo" else ("tutti", "gloo")
dist.init_process_group(first, store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
groups = {first: dist.group.WORLD, second: dist.new_group(backend=second)}
import tutti
for size in (1, 1000, 300000):
    for group in list(groups.values()) * 2:
        x = torch.arange(size, dtype=torch.float32) + rank
        dist.all_reduce(x, group=group)
        assert torch.equal(x, 2 * torch.arange(size, dtype=torch.float32) + 1), (group, x)
description = tutti.c10d.describe(groups["tutti"])
assert description.startswith(transport), description

def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Tanh(), torch.nn.Linear(30, 2))
inputs = torch.linspace(-1, 1, 320).reshape(2, 4, 40)
expected = model()
(sum(expected(x).pow(2).mean() for x in inputs) / 2).backward()
for group in groups.values():
    replica = torch.nn.parallel.DistributedDataParallel(model(), process_group=group)
    replica(inputs[rank]).pow(2).mean().backward()
    for got, want in zip(replica.parameters(), expected.parameters()):
        torch.testing.assert_close(got.grad, want.grad)

# Every library of the wheel that is loaded is the one in the environment.
paths = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
ours = [path for path in paths if "tutti" in os.path.basename(path) and ".so" in path]
assert ours and all(path.startswith(folder) for path in ours), ours
dist.destroy_process_group()
"""

REFUSED = r"""
import sys, warnings
import torch, torch.distributed as dist
minor, torch.__version__ = int(torch.__version__.split(".")[1]), "2.99.1"
wanted = "and this is torch 2.99.1: the classes of c10d differ"
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    if minor >= 14:  # Before, torch does not look at entry points.
        try:
            dist.init_process_group("tutti", store=dist.HashStore(), rank=0, world_size=1)
        except RuntimeError as error:
            assert "tutti" in str(error) and isinstance(error.__cause__, ImportError), repr(error)
            assert wanted in str(error.__cause__), error.__cause__
        else:
            raise AssertionError("another minor version of torch was accepted")
    import tutti
assert any(wanted in str(each.message) for each in warned), warned
assert tutti.c_library().tutti_abi_version() > 0
for name in ("c10d", "losses"):
    try:
        getattr(tutti, name)
    except ImportError as error:
        assert wanted in str(error), error
    else:
        raise AssertionError(f"tutti.{name} accepted another minor version of torch")
"""

# In a Python without packages but the wheel.
ALONE = r"""
import tutti
for name in ("c10d", "losses"):
    try:
        getattr(tutti, name)
    except ImportError as error:
        assert "pip install 'torch>=2." in str(error), error
    else:
        raise AssertionError(f"tutti.{name} was imported without torch")
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir")
    parser.add_argument("--wheel")
    parser.add_argument("--all-pythons", action="store_true")
    parser.add_argument("--setup-arg", action="append", default=[])
    parser.add_argument("--without-gloo", action="store_true")
    return parser.parse_args()


def missing(options):
    """What this Python lacks to build or install a wheel."""
    for module in ["torch", "pip"] + ([] if options.wheel else ["mesonpy"]):
        if importlib.util.find_spec(module) is None:
            return f"{sys.executable} has no module {module}; pip install meson-python ninja"
    for program in [] if options.wheel else ["meson", "ninja"] + (["g++-12"] if options.all_pythons else []):
        if shutil.which(program) is None:
            return f"there is no program {program}"
    return None


def run(*command, **keywords):
    """Runs a command; a failure raises with its output."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **keywords)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command[:6]))} ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


def build(options, folder):
    if options.all_pythons:
        run(ROOT / "tools/packaging/wheel/build", "--out", folder, "--folder", options.build_dir or folder + "/build")
        return str(next(pathlib.Path(folder).glob("*.whl")))
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-build-isolation", "--no-deps", "--no-index",
               "-w", folder, "-Ccompile-args=-j2"]
    command += [f"-Csetup-args={argument}" for argument in options.setup_arg]
    command += [f"-Cbuild-dir={options.build_dir}"] if options.build_dir else []
    run(*command)
    wheels = list(pathlib.Path(folder).glob("tutti_collectives-*.whl"))
    assert len(wheels) == 1, wheels
    return str(wheels[0])


def install(wheel, folder):
    """A virtual environment with the wheel and, through a path, this Python's packages. Returns its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = os.path.join(folder, "bin", "python")
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip()
    of_torch = pathlib.Path(importlib.util.find_spec("torch").origin).parents[1]
    pathlib.Path(packages, "packages_of_the_building_python.pth").write_text(
        f"{of_torch}\n{sysconfig.get_path('platlib')}\n", encoding="utf-8")
    # Without what torch itself asks for, as docs/pytorch.md says: a torch without its CUDA libraries serves too.
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel)
    return python


def check_contents(wheel, folder):
    """The wheel's libraries look beside themselves alone, and export no symbols of the libraries inside."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        names = archive.namelist()
    libraries = {path.name: path for path in pathlib.Path(folder).rglob("*.so*")}
    scripts = next(name for name in names if name.endswith("entry_points.txt"))
    assert "tutti-report = tutti_report.__main__:main" in pathlib.Path(folder, scripts).read_text(), names
    assert "tutti_report/__main__.py" in names, names
    if "manylinux" in wheel:
        import pack  # pylint: disable=import-outside-toplevel
        count, _ = pack.check(pathlib.Path(folder), [str(ROOT), os.path.expanduser("~")])
        assert count >= 6 and "libtutti.so.0.1" in libraries, names
        assert any(name.endswith(".data/data/share/man/man1/tutti.1") for name in names), names
        assert {"tutti/include/tutti/tutti.hpp", "tutti/lib/pkgconfig/tutti.pc"} < set(names), names
    else:
        assert {"libtutti.so", "libtutti_training.so", "libtutti_c.so", "libtutti_torch.so"} < set(libraries), names
        assert not [name for name in names if name.endswith((".hpp", ".a", ".pc"))], names
        for path in libraries.values():
            for where in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", run("readelf", "-d", path)):
                assert where == "$ORIGIN", (path.name, where)
    assert any(name.startswith("_c10d.") for name in libraries), names
    library = libraries.get("libtutti.so.0.1") or libraries["libtutti.so"]
    exported = run("nm", "-D", "--defined-only", library)
    assert not re.search(r"N4gloo|N3fmt|N3hwy| EVP_| SSL_", exported), exported


def check_without_torch(python, folder):
    """The C ABI in a Python that finds the wheel alone."""
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip()
    alone = environment(PYTHONPATH=packages)
    run(python, "-S", "-c", ALONE, env=alone, cwd=folder)
    example = ROOT / "docs/examples/26_ctypes/in_python.py"
    with socket.create_server(("127.0.0.1", 0)) as free:
        shared = {"TUTTI_STORE": f"tcp://127.0.0.1:{free.getsockname()[1]}", "TUTTI_SIZE": "2"}
    ranks = [subprocess.Popen([python, "-S", example], cwd=folder, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env={**alone, **shared, "TUTTI_RANK": str(rank)})
             for rank in range(2)]
    for rank in ranks:
        text = rank.communicate(timeout=60)[0]
        assert rank.returncode == 0 and "sum [3.0, 20.0]\nrows [0.0, 0.0, 1.0]" in text, text


def environment(**more):
    """Without the caller's paths of modules and libraries, which could find another tutti."""
    mine = {name: value for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "TUTTI_BACKEND")}
    return {**mine, **more}


def check_ranks(python, order, transport, folder, refusal=None, **variables):
    """Runs PROGRAM on two ranks, which must end well, or with the text `refusal`."""
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                           timeout=datetime.timedelta(seconds=60))
    described = {"auto": "shm"}.get(transport, transport)
    program = [python, "-W", "ignore", "-c", PROGRAM, order]
    ranks = [subprocess.Popen([*program, str(rank), str(server.port), described, folder], cwd=folder, text=True,
                              env=environment(TUTTI_BACKEND=transport, GLOO_SOCKET_IFNAME="lo", **variables),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(2)]
    try:
        texts = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, text in zip(ranks, texts):
        right = rank.returncode == 0 if refusal is None else rank.returncode == 1 and refusal in text
        assert right, f"{order} first, over {transport}, {variables}: a rank ended with {rank.returncode}:\n{text}"


def main():
    options = arguments()
    os.environ["PATH"] = sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"]
    reason = missing(options)
    if reason is not None:
        print("skipped:", reason)
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        wheel = options.wheel or build(options, folder)
        check_contents(wheel, os.path.join(folder, "contents"))
        python = install(wheel, os.path.join(folder, "installed"))
        print("built, checked and installed", os.path.basename(wheel), flush=True)
        check_without_torch(python, folder)
        print("passed: without torch", flush=True)
        for transport in ["auto"] if options.without_gloo else ["auto", "gloo"]:
            for order in ("tutti", "torch", "gloo"):
                check_ranks(python, order, transport, folder)
                print(f"passed: {order} first, over {transport}", flush=True)
        if options.without_gloo:
            check_ranks(python, "torch", "gloo", folder, "'gloo' is not in this build")
            print("passed: the backend gloo is refused", flush=True)
        else:
            # torch's Gloo is found first, unless tutti's is bound before; then it is refused.
            check_ranks(python, "torch", "gloo", folder, "has another version of Gloo", TORCH_USE_RTLD_GLOBAL="1")
            check_ranks(python, "tutti", "gloo", folder, TORCH_USE_RTLD_GLOBAL="1")
            print("passed: torch's libraries are global", flush=True)
        for test in ("losses_test.py", "lightning_test.py"):
            done = subprocess.run([python, "-W", "ignore", "-B", ROOT / "tests" / "torch" / test], cwd=folder,
                                  env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  check=False)
            assert done.returncode in (0, SKIPPED), done.stdout[-6000:]
            print("skipped:" if done.returncode else "passed:", test, flush=True)
        run(python, "-W", "ignore", "-c", REFUSED, env=environment(), cwd=folder)
        print("passed: another minor version of torch is refused", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
