"""Makes the wheel of a folder, and checks the binaries in it."""
import base64
import hashlib
import re
import zipfile

from sysroot import run

# The newest versions of symbols in Debian 11.
NEWEST = {"GLIBC": (2, 31), "GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12), "GCC": (10, 0, 0)}
TAG = "py3-none-manylinux_2_31_x86_64"
OF_SYSTEM = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s))\.so\.[0-9]+")
OF_TORCH = re.compile(r"lib(torch_cpu|torch_python|c10)\.so")


def numbers(text):
    return tuple(map(int, text.split(".")))


def check_binary(path, names, paths):
    """Refuses symbols that are newer than the tag, libraries that are neither in the wheel nor in the system, run
    paths that are not relative, and texts with a path of the building machine. Returns the newest symbols."""
    newest = {}
    for kind, version in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)", run("readelf", "-VW", path)):
        newest[kind] = max(newest.get(kind, (0,)), numbers(version))
    dynamic = run("readelf", "-dW", path)
    faults = [f"needs {kind}_{'.'.join(map(str, version))}" for kind, version in newest.items()
              if version > NEWEST[kind]]
    faults += [f"needs {name}" for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
               if name not in names and not OF_SYSTEM.fullmatch(name) and not OF_TORCH.fullmatch(name)]
    faults += [f"looks in {where}" for line in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic)
               for where in line.split(":") if not where.startswith("$ORIGIN")]
    content = path.read_bytes()
    faults += [f"names {text}" for text in paths if text.encode() in content]
    if faults:
        raise SystemExit(f"{path.name} {', '.join(faults)}")
    return newest


def check(folder, paths):
    """Checks every binary; `paths` must not be in them. Returns the newest symbols of all."""
    binaries = [path for path in folder.rglob("*") if path.is_file() and path.open("rb").read(4) == b"\x7fELF"]
    names, newest = {path.name for path in binaries}, {}
    for path in binaries:
        for kind, version in check_binary(path, names, paths).items():
            newest[kind] = max(newest.get(kind, (0,)), version)
    return len(binaries), newest


def digest(content):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def write(folder, target, information, when):
    """Writes the wheel of `folder`, sorted and with the time `when`, so that the same files give the same bytes."""
    record = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        def add(name, content, mode):
            entry = zipfile.ZipInfo(name, when)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, mode << 16
            archive.writestr(entry, content)

        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name, content = path.relative_to(folder).as_posix(), path.read_bytes()
            add(name, content, 0o100755 if path.stat().st_mode & 0o100 else 0o100644)
            record.append(f"{name},{digest(content)},{len(content)}\n")
        record.append(f"{information}/RECORD,,\n")
        add(f"{information}/RECORD", "".join(record), 0o100644)
