"""The script `run` on a machine that need not have a GPU: run_test.py PATH_OF_RUN. What it makes of the programs' output is tried with
programs that only say something."""
import os
import pathlib
import re
import stat
import subprocess
import sys
import tempfile
import unittest

RUN = ""
ABOUT = "echo nccl=2.28.9; echo cuda=13.0; echo driver_cuda=13.0; echo devices=1; echo nccl_code=22809; echo gloo=no"
RUNNING = "echo '[==========] Running 12 tests from 3 test suites.'"
OK = "echo '[       OK ] Matrix/Gather.Rows/nccl_gpu_normal_w1 ({} ms)'"
PASSED = f"{RUNNING}; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do {OK.format(1)}; done; echo '[  PASSED  ] 12 tests.'"
NOTHING = "echo '[==========] Running 0 tests from 0 test suites.'; echo '[  PASSED  ] 0 tests.'"
NO_COPIES = f"case $* in *nccl_copies*) {NOTHING};; *) {PASSED};; esac"
WITH_COPIES = f"{PASSED}; echo 'rank 1 uses a copy of 207 MiB, made in 0.70 s, loaded in 0.01 s; its first communicator took 1.20 s'"
ROW = "[ $TUTTI_RANK != 0 ] || echo '| all_reduce | 8 B | {} | 6.50 | 5.00 | 4.00 | {} |'"
FAST = ROW.format("10.50 | 10.00 | +0.50 | 1.050 | 9.75 | +0.75 | 1.077", "ok")


def run(*arguments, path=None, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TUTTI_", "NCCL_", "CXX"))}
    environment.update(variables)
    if path is not None:
        environment["PATH"] = path
    return subprocess.run([RUN, *map(str, arguments)], text=True, capture_output=True, timeout=100, env=environment)


class Script(unittest.TestCase):
    def program(self, path, body):
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def with_programs(self, *arguments, variables=None, **programs):
        """The run over programs of shell; the table."""
        bodies = {"about": ABOUT, "conformance": NO_COPIES, "conformance_processes": PASSED, "graph": "echo ok", "overhead": FAST,
                  "prices": "echo '| cudaEventRecord | 812 |'", "soak": "echo 'ok, 7 of 9 calls'", **programs}
        with tempfile.TemporaryDirectory() as folder:
            at = pathlib.Path(folder, "tests/backends/gpu")
            at.mkdir(parents=True)
            (at / "cases").write_text("matrix='AllReduce Gather' worlds='SendRecv' process_worlds='SendRecv' left_out='*Some*'\n")
            for name, body in bodies.items():
                self.program(at / f"gpu_{name}", body)
            # Neither this machine's torch nor its compute-sanitizer is asked.
            tools = pathlib.Path(folder, "tools")
            tools.mkdir()
            for name, body in {"python3": "exit 1", "compute-sanitizer": 'shift 4; exec "$@"', "ldconfig": "echo ''"}.items():
                self.program(tools / name, body)
            done = run("--no-build", "--build", folder, "--out", pathlib.Path(folder, "table.md"), *arguments,
                       path=f"{tools}:{os.environ['PATH']}", **variables or {})
            table = pathlib.Path(folder, "table.md")
            self.assertEqual(table.read_text() if table.exists() else done.stdout, done.stdout)
            done.folders = [entry.name for entry in pathlib.Path(folder, "table.md.logs").iterdir() if entry.is_dir()]
            done.logs = {log.name: log.read_text() for log in pathlib.Path(folder, "table.md.logs").iterdir() if log.is_file()}
            return done

    def result(self, done, name):
        """The result and the detail of a row."""
        found = re.search(rf"^\| {re.escape(name)} \| (.*?) \| (.*?) ?\|$", done.stdout, re.MULTILINE)
        self.assertIsNotNone(found, f"{name}\n{done.stdout}{done.stderr}")
        return found[1], found[2].strip()

    @unittest.skipIf(list(pathlib.Path("/dev").glob("nvidia[0-9]*")) or pathlib.Path("/dev/dxg").exists(), "this machine has a GPU")
    def test_without_a_gpu_nothing_is_built(self):
        done = run()
        self.assertEqual((done.returncode, done.stdout), (77, "no GPU: there is no /dev/nvidia0 here\n"))

    def test_a_missing_library_is_no_missing_gpu_and_the_places_are_named(self):
        done = self.with_programs(about="echo 'the GPU cannot be used: libnccl.so.2 cannot be loaded'; exit 69", variables={"CUDA_HOME": "/t"})
        self.assertEqual(done.returncode, 69)
        self.assertRegex(done.stdout, "(?s)libnccl.so.2 cannot be loaded\nlooked in:\n.*/t/lib64\n.*nvidia/.*--nccl DIR")

    def test_one_table_says_what_passed_and_what_was_not_run(self):
        done = self.with_programs()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("CUDA 13.0 (driver for 13.0), NCCL 2.28.9", done.stdout.splitlines()[0])
        self.assertEqual(self.result(done, "conformance of nccl, 1 rank"), ("ok", "12 of 12 cases"))
        self.assertIn("uname -a", done.logs["inventory.txt"])
        self.assertEqual(done.folders, [])
        self.assertIn(done.logs["rows.md"], done.stdout)
        self.assertEqual(done.logs["CUDA_graph__1_rank.0"], "ok\n")
        self.assertEqual(self.result(done, "2 ranks on one device, NCCL_MULTI_RANK_GPU_ENABLE=1"), ("not run", "NCCL 2.28.9: it takes 2.30"))
        self.assertEqual(self.result(done, "2 ranks on one device, a distinct NCCL_HOSTID each")[0], "ok")
        self.assertEqual(self.result(done, "conformance of nccl, 2 ranks on one device")[0], "ok")
        self.assertEqual(self.result(done, "conformance of nccl, a device for each rank")[0], "not run")
        for name in ("CUDA graph, 1 rank", "abort while a graph is alive, 2 ranks on one device", "own kernels under racecheck, 2 ranks on one device"):
            self.assertEqual(self.result(done, name)[0], "ok")
        self.assertEqual(self.result(done, "control: torch, 2 ranks on one device, a distinct NCCL_HOSTID each")[0], "not run")
        self.assertIn("**bare NCCL, 2 ranks on one device, 0 of 1 rows beyond 2 % and 1 µs of bare NCCL, 0 of them", done.stdout)
        self.assertIn("| all_reduce | 8 B |", done.stdout)

    def test_a_failed_case_is_named_and_fails_the_run(self):
        failed = f"{RUNNING}; echo '[  FAILED  ] Matrix/Gather.Rows/nccl_gpu_normal_w1, where x'; echo '[  FAILED  ] 1 test, listed'; exit 1"
        done = self.with_programs(conformance=failed)
        self.assertEqual(done.returncode, 1)
        result, detail = self.result(done, "conformance of nccl, 1 rank")
        self.assertEqual(result, "FAILED")
        self.assertEqual(detail, "status 1; Matrix/Gather.Rows/nccl_gpu_normal_w1")
        self.assertIn("[  FAILED  ] Matrix/Gather.Rows", done.logs["conformance_of_nccl__1_rank"])

    def test_the_end_of_the_time_is_no_failure_and_a_case_that_hangs_is_one(self):
        name = "conformance of nccl, 1 rank"
        for took, result, detail in ((59000, "ok", "1 of 12 cases, the time was up in A.b"), (1000, "FAILED", "1 of 12 cases; hung in A.b")):
            # As timeout ends a program: its limit is 60 s.
            ended = f"case $* in *nccl_gpu*) {RUNNING}; {OK.format(took)}; echo '[ RUN      ] A.b'; exit 124;; *) {PASSED};; esac"
            done = self.with_programs(conformance=ended)
            self.assertEqual(self.result(done, name), (result, detail))
            self.assertEqual(done.returncode, 0 if result == "ok" else 1)

    def test_one_rank_of_several_that_fails_is_enough(self):
        done = self.with_programs(conformance_processes=f"{PASSED}; case $* in *Matrix/Gather*) [ $TUTTI_RANK = 0 ];; esac")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.result(done, "conformance of nccl, 2 ranks on one device")[0], "FAILED")

    def test_ranks_as_threads_come_first_and_take_the_place_of_processes(self):
        graph = '[ "$NCCL_HOSTID $CUDA_DEVICE_MAX_CONNECTIONS" = "tutti 32" ] || exit 1; case $* in *"--copies 2"|*"--copies 4") echo ok;; *) exit 1;; esac'
        done = self.with_programs(conformance=WITH_COPIES, graph=f"[ $# = 0 ] && echo ok && exit 0; {graph}")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.result(done, "2 ranks as threads on one device, a copy of NCCL each")[0], "ok")
        self.assertEqual(self.result(done, "a copy of NCCL"),
                         ("ok", "of 207 MiB, made in 0.70 s, loaded in 0.01 s; its first communicator took 1.20 s"))
        for ranks in (2, 4):
            for name in ("CUDA graph", "abort while a graph is alive", "deadline while a graph is alive", "conformance of nccl"):
                self.assertEqual(self.result(done, f"{name}, {ranks} ranks as threads on one device")[0], "ok")
        self.assertIn("**bare NCCL, 2 ranks as threads on one device, 0 of 1 rows", done.stdout)
        self.assertEqual(self.result(done, "soak, 2 ranks as threads on one device"), ("ok", "7 of 9 calls"))
        self.assertEqual(self.result(done, "2 ranks on one device, a distinct NCCL_HOSTID each")[0], "ok")
        self.assertNotIn("| conformance of nccl, 2 ranks on one device |", done.stdout)


if __name__ == "__main__":
    RUN = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:], "-v"])
