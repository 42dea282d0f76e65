"""The C library of Debian 11, and the libraries of Debian 12 that a wheel has inside, as a sysroot for GCC 12.

What is linked needs glibc 2.31 and libstdc++ of GCC 10. What libstdc++ of GCC 12 adds to the latter is linked
statically, as the toolsets of RHEL do. Packages come from the mirror of the machine's apt, and nothing is installed."""
import os
import pathlib
import re
import shutil
import subprocess

COMPILER = "g++-12"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
OF_SYSTEM = ["libc6", "libc6-dev", "linux-libc-dev", "libcrypt1", "libstdc++6", "libgcc-s1", "gcc-10-base"]
# Linked statically or headers. Their licences are in the wheel.
INSIDE = ["libfmt-dev", "libasio-dev", "libeigen3-dev", "libssl-dev", "libcli11-dev", "nlohmann-json3-dev"]
HEADERS = ["libucx-dev"]
HIGHWAY_SOURCES = ["aligned_allocator", "per_target", "print", "targets"]


def run(*command, **keywords):
    """Runs a command; a failure raises with its output. Returns what it printed."""
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False, **keywords)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


class Apt:
    """Lists of packages of several releases of Debian, apart from those of the machine."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("state/lists/partial", "cache/archives/partial", "debs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "state/status").touch()
        found = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian")
        if not found:
            raise SystemExit("apt knows no mirror of Debian: apt-get update")
        mirror = found.split()[0].rstrip("/")
        old = " check-valid-until=no"   # Mirrors may have old lists of these; headers alone are taken from sid.
        (folder / "sources.list").write_text("".join(
            f"{kind} [signed-by={KEYRING}{old if release in ('bullseye', 'sid') else ''}] {source} {release} main\n"
            for kind, source, release in (
                ("deb", mirror, "bullseye"), ("deb", mirror, "bookworm"), ("deb-src", mirror, "bookworm"),
                ("deb", f"{mirror}-security", "bookworm-security"), ("deb", mirror, "trixie"), ("deb", mirror, "sid"))))
        self.options = [f"-oDir::Etc::sourcelist={folder}/sources.list", "-oDir::Etc::sourceparts=/dev/null",
                        f"-oDir::State={folder}/state", f"-oDir::State::status={folder}/state/status",
                        f"-oDir::Cache={folder}/cache", "-oDir::Cache::pkgcache=pkgcache.bin",
                        "-oDir::Cache::srcpkgcache=srcpkgcache.bin",   # Images of containers turn them off.
                        "-oAcquire::Languages=none", "-oAPT::Sandbox::User=root"]
        run("apt-get", *self.options, "-oAPT::Update::Error-Mode=any", "update")

    def newest(self, name, release):
        """The newest version of a package in a release of Debian, with its security updates."""
        lines = run("apt-cache", *self.options, "madison", name).splitlines()
        of_release = [line for line in lines if f" {release}/" in line or f" {release}-security/" in line]
        if not of_release:
            raise SystemExit(f"the mirror has no package {name} in {release}")
        return of_release[0].split("|")[1].strip()

    def unpack(self, target, release, *names):
        """Unpacks packages of a release of Debian into the folder `target`."""
        for name in names:
            version = self.newest(name, release)
            debs = self.folder / "debs" / release / name / version.replace(":", "_")
            debs.mkdir(parents=True, exist_ok=True)
            if not list(debs.glob("*.deb")):
                run("apt-get", *self.options, "download", f"{name}={version}", cwd=debs)
            run("dpkg", "-x", next(debs.glob("*.deb")), target)

    def source(self, target, name):
        """Unpacks a source package. Returns its folder."""
        run("apt-get", *self.options, "source", "--download-only", name, cwd=target)
        run("dpkg-source", "--no-check", "-x", next(target.glob(name + "_*.dsc")), target / name)
        return target / name


def make_links_relative(root):
    """So that absolute links lead to files of the sysroot."""
    for path in root.rglob("*"):
        if path.is_symlink() and os.readlink(path).startswith("/"):
            target = root / os.readlink(path)[1:]
            path.unlink()
            path.symlink_to(os.path.relpath(target, path.parent))


def add_highway(root, apt):
    """Debian has Highway as a shared library alone."""
    folder = apt.source(root.parent, "highway")
    version = re.search(r"\(([0-9.]+)", (folder / "debian/changelog").read_text())[1]
    objects = []
    for name in HIGHWAY_SOURCES:
        objects.append(root.parent / f"{name}.o")
        run(COMPILER, f"--sysroot={root}", "-O2", "-fPIC", "-std=c++17", "-ffile-prefix-map=" + str(folder) + "=.",
            f"-I{folder}", "-c", folder / f"hwy/{name}.cc", "-o", objects[-1])
    run("ar", "rcsD", root / LIBRARIES / "libhwy.a", *objects)
    shutil.copytree(folder / "hwy", root / "usr/include/hwy", ignore=lambda _, names: [
        name for name in names if "." in name and not name.endswith(".h")])
    write_pc(root, "libhwy", version, "-lhwy", "")
    shutil.copytree(folder / "debian", root / "usr/share/doc/libhwy", ignore=lambda _, names: [
        name for name in names if name != "copyright"])


def write_pc(root, name, version, libraries, flags):
    (root / LIBRARIES / "pkgconfig" / f"{name}.pc").write_text(
        f"Name: {name}\nDescription: inside the wheel\nVersion: {version}\nLibs: {libraries}\nCflags: {flags}\n")


def use_static_libraries(root):
    """fmt as headers; OpenSSL as archives; of libstdc++ what GCC 10 has not."""
    libraries = root / LIBRARIES
    fmt = (libraries / "pkgconfig/fmt.pc").read_text()
    write_pc(root, "fmt", re.search(r"Version: (\S+)", fmt)[1], "", "-DFMT_HEADER_ONLY")
    for name in ("crypto", "ssl"):
        (libraries / f"lib{name}.so").unlink()
    # The compiler also looks in folders of the machine, but after this one.
    (libraries / "libgcc_s.so.1").symlink_to("../../../lib/x86_64-linux-gnu/libgcc_s.so.1")
    (libraries / "libstdc++_rest.a").symlink_to(run(COMPILER, "-print-file-name=libstdc++.a").strip())
    (libraries / "libstdc++.so").write_text("INPUT ( libstdc++.so.6 libstdc++_rest.a )\n")


def make(folder):
    """Makes the sysroot once. Returns it and the lists of packages."""
    apt = Apt(folder / "apt")
    root = folder / "sysroot"
    contents = [f"{name} {apt.newest(name, release)}" for release, names in (("bullseye", OF_SYSTEM), ("bookworm", INSIDE))
                for name in names]
    complete = root / "complete"
    if not complete.exists() or complete.read_text().splitlines() != contents:   # Security updates make it anew.
        for old in (root, folder / "build", folder / "highway"):
            shutil.rmtree(old, ignore_errors=True)
        root.mkdir()
        apt.unpack(root, "bullseye", *OF_SYSTEM)
        apt.unpack(root, "bookworm", *INSIDE, *HEADERS)
        make_links_relative(root)
        use_static_libraries(root)
        add_highway(root, apt)
        complete.write_text("".join(line + "\n" for line in contents))
    return root, apt


def flags(root, *maps):
    """Those of the compiler and of the linker, for sources in the folders `maps`, whose names are left out."""
    compiler = [f"--sysroot={root}", *(f"-ffile-prefix-map={path}=." for path in (*maps, root))]
    hidden = ":".join(f"lib{name}.a" for name in ("stdc++_rest", "crypto", "ssl", "hwy"))
    return compiler, [f"--sysroot={root}", f"-L{root / LIBRARIES}", "-pthread", "-ldl",
                      f"-Wl,--exclude-libs={hidden}",
                      "-Wl,--disable-new-dtags"]   # LD_LIBRARY_PATH with another libtutti comes after the wheel's own.


def pkg_config(root):
    """The environment in which pkg-config finds the libraries of the sysroot alone."""
    return {**os.environ, "PKG_CONFIG_SYSROOT_DIR": str(root), "PKG_CONFIG_PATH": "",
            "PKG_CONFIG_LIBDIR": f"{root / LIBRARIES}/pkgconfig:{root}/usr/share/pkgconfig"}
