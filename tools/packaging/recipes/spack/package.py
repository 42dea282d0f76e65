"""Spack: in the folder packages/tutti of a repository of one's own; `spack dev-build tutti@0.1.0` in the sources.
Tried: its syntax is read, its version and options compared with the sources. Not tried: a build, because Spack downloads sources."""
from spack_repo.builtin.build_systems.meson import MesonPackage

from spack.package import *


class Tutti(MesonPackage):
    """Collective operations for N ranks, with gradients."""

    license("Apache-2.0")
    version("0.1.0")
    variant("tool", default=True, description="Build the command-line tool")
    depends_on("cxx", type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("fmt@9:")
    depends_on("asio@1.22:", type="build")
    depends_on("openssl@3:")
    depends_on("highway@1.0:")
    depends_on("eigen@3.3:", type="build")
    depends_on("cli11@2.1:", when="+tool", type="build")
    depends_on("nlohmann-json@3.9:", when="+tool", type="build")
    conflicts("%gcc@:11")
    conflicts("%clang@:13")

    def meson_args(self):
        """Options of meson setup."""
        tool = "enabled" if self.spec.satisfies("+tool") else "disabled"
        return [f"-Dtool={tool}", "-Dtests=disabled", "-Dexamples=disabled", "-Dcuda=none",
                "-Dbackends=local,shm,tcp,hier"]
