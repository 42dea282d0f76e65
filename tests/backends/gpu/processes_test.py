"""The conformance suite with ranks that are processes, over each backend between processes: processes_test.py PROGRAM."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
LAUNCHER_VARIABLES = re.compile(r"^(TUTTI_|RANK$|WORLD_SIZE$|LOCAL_|GROUP_|MASTER_|OMPI_|PMI_|PALS_|SLURM_)")


def ranks(size, cases):
    """Status and output of each rank."""
    environment = {name: value for name, value in os.environ.items() if not LAUNCHER_VARIABLES.match(name)}
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(size):
            own = dict(environment, TUTTI_RANK=str(rank), TUTTI_SIZE=str(size), TUTTI_STORE=f"file://{folder}")
            started.append(subprocess.Popen([PROGRAM, f"--gtest_filter={cases}"], env=own, text=True,
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        ends = []
        for process in started:
            out = process.communicate(timeout=100)[0]
            ends.append((process.returncode, out))
        return ends


class Processes(unittest.TestCase):
    def test_each_rank_runs_every_case(self):
        suites = {"AllReduce": "_sum", "Reduce*": "_sum", "Scan": "_sum", "AllGather": "", "AllToAll": "", "Broadcast": "", "Gather": "", "Scatter": ""}
        for backend in ("gloo", "shm", "ucx", "hier_shm_gloo"):
            cases = ":".join(f"Matrix/{suite}.*/{backend}_normal_w2_f32{op}" for suite, op in suites.items())
            cases += f":Matrix/SendRecvData.*/{backend}_checked_w2_i8:Worlds/SendRecv.*/{backend}_normal_w2"
            with self.subTest(backend=backend):
                ends = ranks(2, cases)
                for status, out in ends:
                    self.assertEqual(status, 0, out)
                counts = {re.search(r"\[  PASSED  \] (\d+) tests", out)[1] for _, out in ends}
                self.assertEqual(len(counts), 1)
                self.assertTrue(backend != "gloo" or int(counts.pop()) > 10)  # Others need not be built.


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:], "-v"])
