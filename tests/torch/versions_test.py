"""Configures the backend of torch.distributed for versions of torch that pyproject.toml does not name."""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FROM, BEFORE = re.search(r'"torch>=2\.(\d+),<2\.(\d+)"', (ROOT / "pyproject.toml").read_text()).groups()


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
    for version in (f"2.{int(FROM) - 1}.0", f"2.{BEFORE}.1"):
        with tempfile.TemporaryDirectory() as folder:
            check_refused(version, folder)
            print(f"refused: {version}", flush=True)


if __name__ == "__main__":
    main()
