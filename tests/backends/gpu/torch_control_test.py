"""torch_control.py over gloo in host memory: torch_control_test.py PATH_OF_TORCH_CONTROL, by a Python with torch."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

CONTROL = ""


def ranks(what, size=2):
    """Status and output of each rank."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TUTTI_")}
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(size):
            own = dict(environment, TUTTI_RANK=str(rank), TUTTI_SIZE=str(size), TUTTI_STORE=f"file://{folder}", GLOO_SOCKET_IFNAME="lo",
                       OMP_NUM_THREADS="1")
            started.append(subprocess.Popen([sys.executable, "-W", "ignore", "-B", CONTROL, what, "--cpu"], env=own, text=True,
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        outputs = [process.communicate(timeout=100)[0] for process in started]
        return [process.returncode for process in started], outputs


class Control(unittest.TestCase):
    def rows(self, what, pattern):
        status, outputs = ranks(what)
        self.assertEqual(status, [0, 0], outputs)
        self.assertEqual(outputs[1], "")
        return re.findall(pattern, outputs[0], re.MULTILINE)

    def test_the_ranks_share(self):
        status, outputs = ranks("share")
        self.assertEqual(status, [0, 0], outputs)
        for output in outputs:
            self.assertTrue(output.endswith("\nok\n"), output)

    def test_sizes_are_rows(self):
        self.assertEqual(self.rows("sizes", r"^\| torch all_reduce \| (.*?) \| [0-9.]+ \| [0-9.]+ \|$"), ["8 B", "64 B", "512 B", "4 KiB"])

    def test_a_step_of_ddp_is_two_rows(self):
        self.assertEqual(self.rows("ddp", r"^\| (.*?), 160 gradients \| [0-9.]+ \| [0-9.]+ \|$"),
                         ["DistributedDataParallel", "the same backward without an exchange"])


if __name__ == "__main__":
    CONTROL = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:], "-v"])
