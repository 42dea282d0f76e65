"""The programs of the script `run` over shared libraries that are the double of NCCL and CUDA, which has one device here:
double_libraries_test.py FOLDER_OF_PROGRAMS CUDART CUDA NCCL."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAMS, LIBRARIES = "", []


class Programs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        for name, library in zip(("libcudart.so.13", "libcuda.so.1", "libnccl.so.2"), LIBRARIES):
            shutil.copy(library, pathlib.Path(cls.folder.name, name))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_program(self, name, *arguments, **variables):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("TUTTI_", "NCCL_"))}
        return subprocess.run([pathlib.Path(PROGRAMS, f"gpu_{name}"), *arguments], text=True, capture_output=True, timeout=100,
                              env={**environment, "LD_LIBRARY_PATH": self.folder.name, **variables})

    def check(self, name, *arguments):
        done = self.run_program(name, *arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_the_machine_has_one_device(self):
        self.assertIn("nccl=2.30.7\ncuda=13.0\ndriver_cuda=13.0\ndevices=1\n", self.check("about"))

    def test_graphs_of_several_ranks_on_the_device(self):
        for how, ranks in (("replay", 2), ("replay", 4), ("abort", 2), ("abort", 4), ("deadline", 2)):
            out = self.check("graph", how, "--copies", str(ranks))
            self.assertTrue(out.endswith("\nok\n"), out)
            self.assertEqual(len(re.findall(r"rank [1-3] uses a copy of \d+ MiB, made in", out)), ranks - 1)

    def test_a_rank_that_fails_ends_the_program(self):
        done = self.run_program("soak", "50", "--copies", "2", TMPDIR="/nowhere")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("\nerror: filesystem error: ", done.stdout)

    def test_a_process_is_one_rank_without_copies(self):
        self.assertEqual(self.check("graph"), "ok\n")

    def test_the_suite_of_several_ranks_on_the_device(self):
        out = self.check("conformance", "--gtest_filter=Matrix/AllReduce.*/nccl_copies_normal_w2_*_sum:Worlds/Async.*/nccl_copies_normal_w2:"
                         "Worlds/SubGroups.*/nccl_copies_normal_w4")
        self.assertGreater(int(re.search(r"\[  PASSED  \] (\d+) tests", out)[1]), 50)

    def test_the_soak_ends_with_its_time(self):
        out = self.check("soak", "1", "--copies", "2")
        self.assertRegex(out, r"\nok, \d+000 of 1000000 calls of 8 bytes, \d+ of 200 groups; resident .*, device \+0.0 MiB\n$")


if __name__ == "__main__":
    PROGRAMS, LIBRARIES = sys.argv[1], sys.argv[2:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:], "-v"])
