"""Compiles and runs the consumer of tests/programs/install against the package."""
from pathlib import Path

from conan import ConanFile
from conan.tools.build import can_run


class TestTutti(ConanFile):
    """One source and pkg-config's flags."""

    settings = "os", "compiler", "build_type", "arch"
    generators = "PkgConfigDeps", "VirtualRunEnv"

    def requirements(self):
        """The package that is tested."""
        self.requires(self.tested_reference_str)

    def build(self):
        """Compiles the consumer."""
        consumer = Path(__file__).parents[5] / "tests/programs/install/consumer/consumer.cpp"
        self.run(f"PKG_CONFIG_PATH={self.generators_folder} c++ -std=c++20 {consumer} -o consumer "
                 "$(PKG_CONFIG_PATH=. pkg-config --cflags --libs tutti)")

    def test(self):
        """Runs it."""
        if can_run(self):
            self.run("./consumer", env="conanrun")
