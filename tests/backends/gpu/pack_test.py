"""The pack of the script `run`, without a GPU: pack_test.py PATH_OF_RUN BUILD_FOLDER."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

RUN = BUILD = ""
OF_THE_SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|pthread|rt|resolv))\.so")
HAS_GPU = bool(list(pathlib.Path("/dev").glob("nvidia[0-9]*"))) or pathlib.Path("/dev/dxg").exists()


class Pack(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.at = pathlib.Path(cls.folder.name, "pack")
        made = subprocess.run([RUN, "--no-build", "--build", BUILD, "--pack", cls.at], text=True, capture_output=True, timeout=100)
        if made.returncode != 0:
            raise AssertionError(made.stderr)
        cls.empty = pathlib.Path(cls.folder.name, "empty")
        cls.empty.mkdir()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_pack(self):
        logs = pathlib.Path(self.folder.name, "table.md.logs")
        shutil.rmtree(logs, ignore_errors=True)
        done = subprocess.run([self.at / "run", "--out", logs.with_suffix("")], text=True, capture_output=True,
                              timeout=100, cwd=self.empty, env={})
        done.inventory = (logs / "inventory.txt").read_text() if logs.exists() else ""
        return done

    def test_it_is_small_and_has_no_more_than_it_needs(self):
        files = {path.relative_to(self.at).as_posix() for path in self.at.rglob("*") if path.is_file()}
        self.assertLessEqual(sum((self.at / name).stat().st_size for name in files), 64 << 20)
        programs = {f"programs/gpu_{name}" for name in ("about", "conformance", "conformance_processes", "graph", "overhead", "prices", "soak")}
        rest = {name for name in files if not name.startswith("lib/")}
        self.assertEqual(rest, {"run", "torch_control.py", "commit", "programs/cases"} | programs)
        self.assertFalse([name for name in files if OF_THE_SYSTEM.match(name.removeprefix("lib/"))])

    @unittest.skipIf(HAS_GPU, "this machine has a GPU")
    def test_it_runs_in_an_empty_folder_with_its_own_libraries_as_far_as_no_device_is_needed(self):
        done = self.run_pack()
        self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
        self.assertRegex(done.stdout, "^no GPU: ")
        for name, least in (("cases without a device", 50), ("gloo on the host, 2 ranks", 20)):
            found = re.search(rf"{name}: ok (\d+) of \1 cases", done.stderr)
            self.assertIsNotNone(found, done.stderr)
            self.assertGreaterEqual(int(found[1]), least)
        compiler = {path.name for path in (self.at / "lib/cxx").iterdir()}
        self.assertEqual(compiler, {"libstdc++.so.6", "libgcc_s.so.1"})
        loaded = re.findall(r"^\t(\S+) => (\S+) \(0x", done.inventory, re.MULTILINE)
        self.assertGreater(len(loaded), 20)
        for name, path in loaded:
            self.assertTrue(OF_THE_SYSTEM.match(name) or path == f"{self.at}/lib/{name}" or name in compiler, path)


if __name__ == "__main__":
    RUN, BUILD = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:], "-v"])
