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
# A machine with a GPU and without NCCL: only the system's own folders, and a file in /dev.
NAMESPACE = """mkdir $1/dev && touch $1/dev/null $1/dev/zero $1/dev/urandom $1/dev/nvidia0 && mkdir $1/dev/shm
for file in null zero urandom; do mount --bind /dev/$file $1/dev/$file; done
mount --rbind $1/dev /dev && for folder in /usr/local /opt; do mount -t tmpfs none $folder; done"""


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

    def run_pack(self, *arguments, at=None, before=()):
        logs = pathlib.Path(self.folder.name, "table.md.logs")
        shutil.rmtree(logs, ignore_errors=True)
        done = subprocess.run([*before, (at or self.at) / "run", "--out", logs.with_suffix(""), *arguments], text=True, capture_output=True,
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

    def test_the_compilers_libraries_are_used_where_the_system_has_none(self):
        namespace = ["/usr/bin/unshare", "--user", "--map-root-user", "--mount", "/bin/bash", "-ec"]
        system = subprocess.run(["/sbin/ldconfig", "-p"], text=True, capture_output=True).stdout
        hide = " && ".join(f"mount --bind /dev/null {path}" for path in re.findall(r"libstdc\+\+\.so\.6 .* => (\S+)", system)) or "true"
        if subprocess.run([*namespace, hide], capture_output=True).returncode != 0:
            self.skipTest("mount namespaces are not permitted")
        done = self.run_pack(before=[*namespace, f'{hide}; exec "$@"', "-"])
        self.assertIn("cases without a device: ok", done.stderr)
        self.assertIn(f"libstdc++.so.6 => {self.at}/lib/cxx/", done.inventory)

    def test_a_library_of_the_pack_that_is_missing_is_named(self):
        other = pathlib.Path(self.folder.name, "other")
        shutil.copytree(self.at, other, copy_function=os.link)
        library = next((other / "lib").glob("libgloo*"))
        # This machine has it too, so one program asks for a name that no machine has.
        program = other / "programs/gpu_about"
        changed = program.read_bytes().replace(library.name.encode(), library.name.replace("lib", "lob", 1).encode())
        program.unlink()
        program.write_bytes(changed)
        program.chmod(0o755)
        done = self.run_pack(at=other)
        self.assertEqual(done.returncode, 69, done.stdout + done.stderr)
        self.assertIn(f"{library.name.replace('lib', 'lob', 1)} => not found", done.stderr)
        self.assertIn(f"looked in {other}/lib", done.stderr)

    @unittest.skipIf(HAS_GPU, "this machine has a GPU")
    def test_a_gpu_without_nccl_is_not_a_machine_without_a_gpu(self):
        room = pathlib.Path(self.folder.name, "room")
        room.mkdir()
        namespace = ["/usr/bin/unshare", "--user", "--map-root-user", "--mount", "/bin/bash", "-ec", f'{NAMESPACE}; shift; exec "$@"', "-", room]
        probe = subprocess.run([*namespace, "/bin/sh", "-c", "test -e /dev/nvidia0"], capture_output=True, text=True)
        if probe.returncode != 0:
            self.skipTest(f"mount namespaces are not permitted: {probe.stderr}")
        shutil.rmtree(room)
        room.mkdir()
        done = self.run_pack(before=namespace)
        self.assertEqual(done.returncode, 69, done.stdout + done.stderr)
        self.assertIn("the GPU cannot be used: ", done.stdout)
        self.assertIn(f"looked in:\n{self.at}/lib\n", done.stdout)

    def test_it_makes_no_pack_and_a_pack_overwrites_nothing(self):
        self.assertEqual(self.run_pack("--pack", "other").returncode, 64)
        again = subprocess.run([RUN, "--no-build", "--build", BUILD, "--pack", self.at], text=True, capture_output=True)
        self.assertEqual(again.returncode, 64)
        self.assertIn("is not empty", again.stderr)


if __name__ == "__main__":
    RUN, BUILD = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:], "-v"])
