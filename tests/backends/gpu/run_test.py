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
SLOW = ROW.format("12.00 | 10.00 | +2.00 | 1.200 | 9.75 | +2.25 | 1.231", "SLOW")
THREAD = ROW.format("10.50 | 10.00 | +0.50 | 1.050 | 8.00 | +2.50 | 1.312", "SLOW beside blocking")


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

    def with_programs(self, *arguments, variables=None, python=None, old_logs=None, **programs):
        """The run over programs of shell; the table. `old_logs`: what an earlier run has left."""
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
            for name, body in {"python3": python or "exit 1", "compute-sanitizer": 'shift 4; exec "$@"', "ldconfig": "echo ''"}.items():
                self.program(tools / name, body)
            for name, text in (old_logs or {}).items():
                pathlib.Path(folder, "table.md.logs").mkdir(exist_ok=True)
                pathlib.Path(folder, "table.md.logs", name).write_text(text)
            done = run("--no-build", "--build", folder, "--out", pathlib.Path(folder, "table.md"), *arguments,
                       path=f"{tools}:{os.environ['PATH']}", **variables or {})
            table = pathlib.Path(folder, "table.md")
            self.assertEqual(table.read_text() if table.exists() else done.stdout, done.stdout)
            done.folders = [entry.name for entry in pathlib.Path(folder, "table.md.logs").iterdir() if entry.is_dir()]
            done.logs = {log.name: log.read_text() for log in pathlib.Path(folder, "table.md.logs").iterdir() if log.is_file()}
            return done

    def build(self, *arguments, **tools):
        """What --build-only asks of meson and ninja, with tools of shell."""
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder, "output")
            bodies = {"meson": f'echo "meson $*" >>{output}', "ninja": f'echo "ninja $*" >>{output}', "pkg-config": "", "c++": "", **tools}
            for name, body in bodies.items():
                tool = pathlib.Path(folder, name)
                tool.write_text(f"#!/bin/sh\n{body}\n")
                tool.chmod(0o755)
            done = run("--build-only", "--build", pathlib.Path(folder, "b"), *arguments, path=f"{folder}:/usr/bin:/bin")
            return done, output.read_text() if output.exists() else ""

    def result(self, done, name):
        """The result and the detail of a row."""
        found = re.search(rf"^\| {re.escape(name)} \| (.*?) \| (.*?) ?\|$", done.stdout, re.MULTILINE)
        self.assertIsNotNone(found, f"{name}\n{done.stdout}{done.stderr}")
        return found[1], found[2].strip()

    def test_help_and_options(self):
        done = run("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for option in ("--full", "--out", "--pack", "--build", "--build-only", "--no-build", "--nccl", "--cuda"):
            self.assertIn(option, done.stdout)
        for arguments, word in ((["--frobnicate"], "--frobnicate"), (["--out"], "--out needs a value")):
            done = run(*arguments)
            self.assertEqual(done.returncode, 64)
            self.assertIn(word, done.stderr)

    @unittest.skipIf(list(pathlib.Path("/dev").glob("nvidia[0-9]*")) or pathlib.Path("/dev/dxg").exists(), "this machine has a GPU")
    def test_without_a_gpu_nothing_is_built(self):
        done = run()
        self.assertEqual((done.returncode, done.stdout), (77, "no GPU: there is no /dev/nvidia0 here\n"))

    def test_the_programs_can_be_built_where_there_is_no_gpu_or_no_gloo(self):
        done, output = self.build("--nccl", "/n", "--cuda", "/c")
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertIn("-Dbackends=local,nccl,gloo ", output)
        self.assertIn("-Dnccl=/n -Dcuda=/c", output)
        source = re.search(r"meson setup \S+ (\S+) ", output)
        self.assertTrue(source and pathlib.Path(source[1], "meson_options.txt").exists(), output)
        self.assertRegex(output, r"ninja -C \S+/b tests/backends/gpu/gpu_about .*tests/backends/gpu/gpu_overhead")
        done, output = self.build(**{"c++": "exit 1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("-Dbackends=local,nccl ", output)
        done, output = self.build(**{"pkg-config": "[ $2 != gtest ]"})
        self.assertEqual((done.returncode, output), (69, ""))
        self.assertIn("missing: gtest", done.stderr)

    def test_the_libraries_are_those_that_were_named_then_those_of_the_toolkit(self):
        done = self.with_programs("--nccl", "/n", "--cuda", "/c", about='echo "$LD_LIBRARY_PATH"; exit 77', variables={"CUDA_HOME": "/t"})
        self.assertRegex(done.stdout, r"^/n/lib:/c/lib64:/c/lib:(.*:)?/t/lib64:/t/lib(:.*)?\n$")

    def test_a_library_that_is_nowhere_else_is_found_in_a_wheel(self):
        with tempfile.TemporaryDirectory() as folder:
            wheels = pathlib.Path(folder, "lib/python3.12/site-packages/nvidia")
            for wheel, library in (("nccl", "libnccl.so.2"), ("cu13", "libcudart.so.13")):
                (wheels / wheel / "lib").mkdir(parents=True)
                (wheels / wheel / "lib" / library).touch()
            variables = {"CUDA_HOME": "/t", "VIRTUAL_ENV": folder, "LD_LIBRARY_PATH": ""}
            done = self.with_programs(about='echo "$LD_LIBRARY_PATH"; exit 77', variables=variables)
            self.assertEqual(done.stdout, f"/t/lib64:/t/lib:{wheels}/nccl/lib:{wheels}/cu13/lib\n")
            (wheels / "nccl/lib/libnccl.so.2").rename(pathlib.Path(folder, "libnccl.so.2"))
            done = self.with_programs(about='echo "$LD_LIBRARY_PATH"; exit 77', variables={**variables, "LD_LIBRARY_PATH": folder})
            self.assertEqual(done.stdout, f"{folder}:/t/lib64:/t/lib:{wheels}/cu13/lib\n")

    def test_a_missing_library_is_no_missing_gpu_and_the_places_are_named(self):
        done = self.with_programs(about="echo 'the GPU cannot be used: libnccl.so.2 cannot be loaded'; exit 69", variables={"CUDA_HOME": "/t"})
        self.assertEqual(done.returncode, 69)
        self.assertRegex(done.stdout, "(?s)libnccl.so.2 cannot be loaded\nlooked in:\n.*/t/lib64\n.*nvidia/.*--nccl DIR")

    def test_a_machine_whose_libraries_see_no_gpu_is_skipped(self):
        done = self.with_programs(about="echo 'no GPU: CUDA sees no device'; exit 77")
        self.assertEqual((done.returncode, done.stdout), (77, "no GPU: CUDA sees no device\n"))

    def test_a_gpu_whose_driver_crashes_or_hangs_cannot_be_used(self):
        for status in (139, 124):
            done = self.with_programs(about=f"echo boom; exit {status}")
            self.assertEqual(done.returncode, 69)
            self.assertIn(f"boom\nthe GPU cannot be used: gpu_about has ended with status {status} ", done.stdout)

    def test_the_logs_of_an_earlier_run_decide_nothing(self):
        name = "conformance of nccl, 2 ranks on one device"
        old = "[  FAILED  ] A.b (1 ms)\n"
        done = self.with_programs(about=f"{ABOUT}; echo", old_logs={"conformance_of_nccl__2_ranks_on_one_device.2": old})
        self.assertEqual((done.returncode, self.result(done, name)[0]), (0, "ok"), done.stdout + done.stderr)

    def test_copies_go_where_there_is_room_and_programs_may_run(self):
        copies = f'case $* in *nccl_copies*) [ -d "$TMPDIR" ] || exit 1;; esac; {WITH_COPIES}'
        done = self.with_programs(conformance=copies, variables={"TMPDIR": "/nowhere"})
        self.assertEqual(self.result(done, "2 ranks as threads on one device, a copy of NCCL each")[0], "ok")

    def test_the_rank_that_failed_is_quoted_and_a_row_stays_a_row(self):
        done = self.with_programs(soak="[ $TUTTI_RANK = 1 ] && echo 'ok, 7 of 9 calls' && exit 0; echo 'error: a | b'; exit 1")
        self.assertEqual(self.result(done, "soak, 2 ranks on one device"), ("FAILED", "status 1; error: a \\| b"))

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

    def test_a_piece_that_is_missing_is_not_built_and_never_ok(self):
        done = self.with_programs(conformance=f"case $* in *gloo_gpu*) {NOTHING};; *) {PASSED};; esac",
                                  graph="echo 'not built: calls on a capturing stream'; exit 3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.result(done, "conformance of gloo with arrays on a device, 2 ranks")[0], "not built")
        self.assertEqual(self.result(done, "CUDA graph, 1 rank"), ("not built", "not built: calls on a capturing stream"))

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

    def test_the_end_of_the_time_of_a_measurement_is_a_failure_before_its_first_row(self):
        for overhead, want in (("exit 124", ("FAILED", "took too long")), (f"{FAST}; exit 124", ("ok", "the time was up"))):
            done = self.with_programs(overhead=overhead)
            self.assertEqual(self.result(done, "bare NCCL, 2 ranks on one device"), want)
            self.assertEqual(done.returncode, 0 if want[0] == "ok" else 1)

    def test_that_the_time_was_up_for_one_rank_does_not_hide_that_another_one_crashed(self):
        for crashed in (0, 1):
            ended = f"{PASSED}; case $* in *Matrix/Gather*) [ $TUTTI_RANK = {crashed} ] && exit 139; exit 124;; esac"
            done = self.with_programs(conformance_processes=ended)
            self.assertIn("status 139", self.result(done, "conformance of nccl, 2 ranks on one device")[1])
            self.assertEqual(done.returncode, 1)

    def test_without_a_gpu_a_failure_of_the_host_is_still_a_failure(self):
        failed = f"{RUNNING}; echo '[  FAILED  ] PoolAlone.X (1 ms)'; exit 1"
        self.assertEqual(self.with_programs(about="echo 'no GPU: none'; exit 77", conformance=failed).returncode, 1)

    def test_one_rank_of_several_that_fails_is_enough(self):
        done = self.with_programs(conformance_processes=f"{PASSED}; case $* in *Matrix/Gather*) [ $TUTTI_RANK = 0 ];; esac")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.result(done, "conformance of nccl, 2 ranks on one device")[0], "FAILED")

    def test_a_device_that_takes_one_rank_alone_is_a_failure_that_is_said(self):
        done = self.with_programs(conformance_processes="echo 'Duplicate GPU detected'; exit 1")
        self.assertEqual(done.returncode, 1)
        result, detail = self.result(done, "2 ranks on one device, a distinct NCCL_HOSTID each")
        self.assertEqual(result, "FAILED")
        self.assertIn("Duplicate GPU detected", detail)

    def test_the_second_way_to_share_a_device_is_tried_when_the_first_fails(self):
        newer = ABOUT.replace("22809", "23001").replace("2.28.9", "2.30.1")
        done = self.with_programs(about=newer, conformance_processes=f"[ -z \"$NCCL_MULTI_RANK_GPU_ENABLE\" ] || exit 1; {PASSED}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.result(done, "2 ranks on one device, NCCL_MULTI_RANK_GPU_ENABLE=1")[0], "FAILED")
        self.assertEqual(self.result(done, "2 ranks on one device, a distinct NCCL_HOSTID each")[0], "ok")

    def test_each_rank_on_one_device_has_its_own_host_id(self):
        own = f"case $* in *nccl_gpu*) [ \"$NCCL_HOSTID\" = tutti-$TUTTI_RANK ] && [ \"$NCCL_SOCKET_IFNAME\" = lo ] || exit 1;; esac; {PASSED}"
        done = self.with_programs(conformance_processes=own)
        self.assertEqual(done.returncode, 0, done.stdout)

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

    def test_without_copies_processes_take_the_place_of_threads(self):
        for conformance in (NO_COPIES, f"case $* in *nccl_copies*) echo 'no room'; exit 1;; *) {PASSED};; esac"):
            done = self.with_programs(conformance=conformance)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn(self.result(done, "2 ranks as threads on one device, a copy of NCCL each")[0], ("not built", "FAILED"))
            self.assertEqual(self.result(done, "conformance of nccl, 2 ranks on one device")[0], "ok")
            self.assertEqual(self.result(done, "soak, 2 ranks on one device"), ("ok", "7 of 9 calls"))

    def test_with_copies_a_device_that_processes_cannot_share_is_no_failure(self):
        done = self.with_programs(conformance=WITH_COPIES, conformance_processes="case $* in *nccl_gpu*) exit 1;; esac; " + PASSED)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.result(done, "2 ranks on one device, a distinct NCCL_HOSTID each")[0], "FAILED")

    def test_a_failure_of_ranks_as_threads_fails_the_run(self):
        failed = f"case $* in *nccl_copies*w4*) {RUNNING}; echo '[  FAILED  ] A.b (1 ms)'; exit 1;; *) {WITH_COPIES};; esac"
        done = self.with_programs(conformance=failed)
        self.assertEqual((done.returncode, self.result(done, "conformance of nccl, 4 ranks as threads on one device")), (1, ("FAILED", "status 1; A.b")))

    def test_a_wrong_sum_of_the_soak_or_a_wrong_fold_fails_the_run_and_prices_are_shown(self):
        done = self.with_programs(soak="echo 'rank 0: 3 results are wrong'; exit 1", prices="echo '| fold | 5 | WRONG |'; echo 'a fold is wrong'; exit 1")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.result(done, "soak, 2 ranks on one device"), ("FAILED", "status 1; rank 0: 3 results are wrong"))
        self.assertEqual(self.result(done, "prices of single calls"), ("FAILED", "status 1; a fold is wrong"))
        self.assertIn("**prices of single calls**:\n\n| fold | 5 | WRONG |\n", done.stdout)

    def test_torch_is_measured_with_the_same_ranks_and_fails_nothing(self):
        python = 'case $* in *find_spec*) exit 0;; *sizes*) [ "$NCCL_HOSTID" = tutti-$TUTTI_RANK ] && echo "| torch all_reduce | 8 B | 9 | 8 |";; *) exit 1;; esac'
        done = self.with_programs(python=python)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.result(done, "torch's all_reduce, 2 ranks on one device")[0], "ok")
        self.assertIn("| operation | size | µs | host µs |\n|---|---:|---:|---:|\n| torch all_reduce | 8 B | 9 | 8 |\n", done.stdout)
        for name in ("control: torch, 2 ranks on one device, a distinct NCCL_HOSTID each", "torch's DistributedDataParallel, 2 ranks on one device"):
            self.assertEqual(self.result(done, name)[0], "FAILED")

    def test_a_call_that_is_too_slow_fails_nothing_and_its_row_is_shown(self):
        name = "bare NCCL, 2 ranks on one device"
        for overhead, only, rating in ((SLOW, 0, "SLOW"), (THREAD, 1, "SLOW beside blocking"), (f"{FAST}; {SLOW}; {THREAD}", 1, "SLOW")):
            rows = overhead.count("echo")
            with self.subTest(rating=rating, rows=rows):
                done = self.with_programs(overhead=overhead)
                self.assertEqual((done.returncode, self.result(done, name)[0]), (0, "ok"))
                self.assertIn(f"**{name}, {min(rows, 2)} of {rows} rows beyond 2 % and 1 µs of bare NCCL, {only} of them only "
                              "where its communicator blocks**:", done.stdout)
                self.assertIn(f"| 4.00 | {rating} |", done.stdout)
        done = self.with_programs(overhead=f"{FAST.replace('| ok |', '| WRONG: 7 elements |')}; exit 1")
        self.assertEqual((done.returncode, self.result(done, name)[0]), (1, "FAILED"))


if __name__ == "__main__":
    RUN = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:], "-v"])
