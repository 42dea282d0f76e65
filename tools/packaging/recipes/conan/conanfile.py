"""Conan 2. Tried: Conan 2.34 resolved it with the packages of Debian as platform_requires, and configured it. Not tried:
a whole build, and the packages of ConanCenter."""
from pathlib import Path

from conan import ConanFile
from conan.tools.files import copy
from conan.tools.gnu import PkgConfigDeps
from conan.tools.layout import basic_layout
from conan.tools.meson import Meson, MesonToolchain


class Tutti(ConanFile):
    """The shared libraries, without the tool."""

    name = "tutti"
    version = "0.1.0"
    license = "Apache-2.0"
    package_type = "shared-library"
    settings = "os", "compiler", "build_type", "arch"
    requires = "fmt/10.2.1", "asio/1.30.2", "openssl/[>=3.0 <4]", "highway/1.2.0", "eigen/3.4.0"
    tool_requires = "meson/[>=1.0]", "pkgconf/[>=2.0]"

    def export_sources(self):
        """Exports what the build reads."""
        root = Path(self.recipe_folder).parents[3]
        for name in ("meson.build", "meson_options.txt", "LICENSE", "include/*", "lib/*", "backends/*", "tools/*",
                     "python/*", "tests/*", "docs/examples/*"):
            copy(self, name, root, self.export_sources_folder)

    def layout(self):
        """Puts the build folder below the sources."""
        basic_layout(self)

    def generate(self):
        """Writes Meson's native file and the dependencies' pkg-config files."""
        toolchain = MesonToolchain(self)
        toolchain.project_options.update({"tool": "disabled", "tests": "disabled", "examples": "disabled",
                                          "cuda": "none", "backends": ["local", "shm", "tcp", "hier"]})
        toolchain.generate()
        PkgConfigDeps(self).generate()

    def build(self):
        """Compiles."""
        meson = Meson(self)
        meson.configure()
        meson.build()

    def package(self):
        """Installs into the package."""
        Meson(self).install()

    def package_info(self):
        """Names the libraries as the CMake files of tutti do."""
        for component, library in (("tutti", "tutti"), ("training", "tutti_training"), ("c", "tutti_c")):
            self.cpp_info.components[component].libs = [library]
            self.cpp_info.components[component].set_property("cmake_target_name", f"tutti::{component}")
        self.cpp_info.components["training"].requires = ["tutti"]
        self.cpp_info.components["c"].requires = ["training"]
        self.cpp_info.components["tutti"].requires = ["fmt::fmt", "asio::asio", "openssl::openssl", "highway::highway",
                                                      "eigen::eigen"]
