"""Runs `tutti diagnose` over the traces of ranks that were killed or made different calls:
diagnose_test.py PATH_OF_TUTTI PATH_OF_TRACED_PROGRAM [unittest arguments]."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from driver import ENVIRONMENT, TUTTI, Program, main, tutti

PROGRAM = os.path.abspath(sys.argv.pop(1))
SOON = 60


class Diagnose(Program):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, ranks, what):
        run = subprocess.Popen([TUTTI, "run", "-n", str(ranks), PROGRAM, what], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env={**ENVIRONMENT, "TUTTI_TRACE_DIR": self.folder})
        self.addCleanup(self.end, run)
        return run

    def end(self, run):
        if run.poll() is None:
            run.send_signal(signal.SIGTERM)
        run.wait(SOON)

    def diagnose(self, code):
        done = tutti("diagnose", self.folder)
        self.assertEqual((done.returncode, done.stderr), (code, ""), done.stdout)
        return done.stdout

    def eventually(self, line):
        """The output once it has a line that matches. Before, the directory may be empty."""
        until = time.monotonic() + SOON
        while True:
            done = tutti("diagnose", self.folder)
            if re.search(line, done.stdout, re.M):
                return done.stdout
            self.assertLess(time.monotonic(), until, f"no {line}\n{done.stdout}{done.stderr}")
            time.sleep(0.02)

    def test_a_run_without_a_fault_has_no_findings(self):
        self.assertEqual(self.start(3, "well").wait(SOON), 0)
        out = self.diagnose(0)
        self.assertEqual(out.splitlines()[-1], "nothing is wrong")
        for rank in range(3):
            self.assertRegex(out, rf"(?m)^  rank {rank} .* closed: finished all_reduce #2 sum f32 16 B$")

    def test_a_rank_that_is_late_and_then_killed(self):
        run = self.start(3, "late")
        out = self.eventually(r"^  lags .*ranks 0,2 wait$")
        self.assertIn("rank 1 has not entered all_reduce #2 sum f32 16 B, in which ranks 0,2 wait", out)
        self.assertRegex(out, r"(?m)^  rank 0 .* open: finished all_reduce #1 sum f32 16 B; in all_reduce #2 sum f32 16 B, "
                              r"entered \d+\.\d s ago$")
        pid = int(re.search(r"(?m)^  rank 1 +process (\d+) ", out)[1])
        os.kill(pid, signal.SIGKILL)
        self.assertNotEqual(run.wait(SOON), 0)
        out = self.diagnose(3)
        self.assertRegex(out, rf"(?m)^  rank 1 +process {pid} on .*, gone: finished all_reduce #1 sum f32 16 B$")
        self.assertIn(f"rank 1: process {pid} ended without closing the group, after all_reduce #1 sum f32 16 B", out)
        self.assertIn("rank 1 has not entered all_reduce #2", out)

    def test_ranks_that_make_different_calls(self):
        self.assertNotEqual(self.start(3, "differ").wait(SOON), 0)
        self.assertIn("  diverged  at collective #2: ranks 0,2: all_reduce #2 sum f32 16 B; rank 1: broadcast #2 f32 16 B root 0\n",
                      self.diagnose(3))

    def test_a_message_that_no_rank_sends(self):
        self.start(2, "message")
        self.eventually(r"^  waits +rank 0 in recv #0 f32 16 B peer 1, entered \d+\.\d s ago: rank 1 has no such send$")

    def test_a_rank_without_a_file_and_a_damaged_file(self):
        self.assertEqual(self.start(3, "well").wait(SOON), 0)
        files = {int(path.name.split(".")[1]): path for path in pathlib.Path(self.folder).iterdir()}
        files[2].unlink()
        files[1].write_bytes(files[1].read_bytes()[:1000])
        out = self.diagnose(3)
        self.assertIn("  missing   no trace file of rank 1-2\n", out)
        self.assertRegex(out, rf"(?m)^unreadable  {re.escape(files[1].name)}: not a trace file: it has 1000 bytes")
        done = tutti("diagnose", self.folder, "-f", "json")
        self.assertEqual(done.returncode, 3)
        found = json.loads(done.stdout)
        self.assertEqual(found["findings"], 2)
        self.assertEqual(found["groups"][0]["missing"], "1-2")
        self.assertEqual(found["groups"][0]["findings"][0]["kind"], "missing")
        self.assertEqual(found["groups"][0]["ranks"][0]["finished"], "all_reduce #2 sum f32 16 B")
        self.assertEqual(found["unreadable"][0]["file"], files[1].name)

    def test_what_cannot_be_read_is_refused(self):
        self.refuses(69, ["diagnose", self.folder], self.folder, "no trace files", "TUTTI_TRACE_DIR")
        self.refuses(64, ["diagnose", self.folder + "/missing"], "missing'", "No such file")
        self.refuses(64, ["diagnose"], "no directory")
        self.refuses(64, ["diagnose", self.folder, "-f", "xml"], "'xml'")


if __name__ == "__main__":
    main()
