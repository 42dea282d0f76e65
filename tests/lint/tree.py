"""Functions that the lints share: the files of the project, and the report of problems."""
import pathlib
import re
import shutil
import subprocess
import sys

WARNING = "warning: "
CXX = (".cpp", ".hpp", ".cpp.in", ".hpp.in")


def files(root, *endings):
    """The project's files, sorted: those that git tracks, or all files in a copy without git."""
    listed = None
    if (root / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=False)
    if listed and listed.returncode == 0:
        found = [root / name for name in listed.stdout.decode().split("\0") if name]
    else:
        found = [p for p in root.rglob("*")
                 if not re.match(r"build|\.git$|\.cache$", p.relative_to(root).parts[0]) and "__pycache__" not in p.parts]
    return sorted(p for p in found
                  if p.is_file() and not p.is_symlink() and (not endings or p.name.endswith(endings)))


def lines(path):
    """Numbered lines; bytes that are not UTF-8 do not stop a lint."""
    return enumerate(path.read_text(errors="replace").splitlines(), 1)


def program(*names):
    """The first of the programs that is installed. If none is, the lint is skipped, which Meson
    reports."""
    for name in names:
        if path := shutil.which(name):
            return path
    print(f"skipped: {names[0]} is not installed")
    sys.exit(77)


def run(check):
    """Runs a lint over the tree that its argument names. What begins with WARNING does not fail."""
    found = check(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(found) or "clean")
    sys.exit(0 if all(problem.startswith(WARNING) for problem in found) else 1)
