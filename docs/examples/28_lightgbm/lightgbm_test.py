"""Tests LightGBM over tutti: the models of its own sockets, and errors when a rank dies or stops.

usage: lightgbm_test.py TUTTI LIGHTGBM [TEST]"""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TASKS = ["binary", "multiclass", "lambdarank"]


class Training(unittest.TestCase):
    def test_models_are_those_of_lightgbms_sockets(self):
        for size in (1, 2, 3, 4):   # 3: LightGBM combines in another order when W is not a power of two.
            for backend in ("shm", "gloo"):
                with self.subTest(size=size, backend=backend):
                    done = subprocess.run([tutti, "run", "-n", str(size), lightgbm, "--backend", backend,
                                           "--iterations", "20", *TASKS],
                                          capture_output=True, text=True, check=False, timeout=300)
                    self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
                    of = "LightGBM's sockets" if size > 1 else "a second training"
                    equal = re.findall(rf"(\w+): .*, one model on all ranks, equal to that of {of}", done.stdout)
                    self.assertEqual(equal, TASKS, done.stdout)

    def fail_a_rank(self, how, backend, size, failing):
        """Sends a signal to one rank in the middle of the training. Returns what the others print on
        stderr, and the seconds until all of them have ended."""
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([lightgbm, "--backend", backend, "--iterations", "1000000", "--verbose", "lambdarank"],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      env={**os.environ, "TUTTI_RANK": str(rank), "TUTTI_SIZE": str(size),
                                           "TUTTI_STORE": f"file://{folder}"})
                     for rank in range(size)]
            try:
                for line in ranks[failing].stdout:
                    if line.startswith("iteration 3:"):
                        break
                ranks[failing].send_signal(how)
                begin = time.monotonic()
                texts = []
                for rank, process in enumerate(ranks):
                    if rank != failing:
                        texts.append(process.communicate(timeout=60)[1])
                        self.assertEqual(process.returncode, 1, texts[-1])
                return texts, time.monotonic() - begin
            finally:
                for process in ranks:
                    process.kill()
                    process.communicate()

    def test_a_rank_that_is_killed_is_an_error_that_names_it(self):
        for backend in ("shm", "gloo"):
            for size, failing in ((2, 1), (4, 0), (4, 2)):
                with self.subTest(backend=backend, size=size, failing=failing):
                    texts, seconds = self.fail_a_rank(signal.SIGKILL, backend, size, failing)
                    for text in texts:
                        self.assertRegex(text, rf"(?m)^error: peer_lost: all_(to_all|gather) #\d+ .*rank {failing}\b")
                    self.assertLess(seconds, 10)

    def test_a_rank_that_is_stopped_is_an_error_that_names_it(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                for text in self.fail_a_rank(signal.SIGSTOP, backend, 2, 1)[0]:
                    self.assertRegex(text, r"(?m)^error: peer_lost: all_(to_all|gather) #\d+ .*rank 1 has not responded for 10")


if __name__ == "__main__":
    tutti, lightgbm = sys.argv[1:3]
    alone = subprocess.run([lightgbm], capture_output=True, text=True, check=False, timeout=60)
    if alone.returncode == 77:
        print(alone.stderr)
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
