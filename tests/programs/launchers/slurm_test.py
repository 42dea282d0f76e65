"""Runs a program under Slurm on three hosts: slurm_test.py PATH_OF_TUTTI PROGRAM [unittest arguments].

The hosts n1 to n3 are network and UTS namespaces on a bridge. The bridge, Slurm's daemons and their files in /run are in
namespaces of this process, and end with it."""
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
import unittest

import launchers_test
from launchers_test import ENVIRONMENT, finish, start

TUTTI = PROGRAM = ""
RUN = pathlib.Path("/run")
TOOLS = ("ip", "unshare", "munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel")
NAMESPACES = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
CONFIGURATION = """
ClusterName=tutti
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge.socket
StateSaveLocation=/run/state
SlurmdSpoolDir=/run/%n
TmpFS=/run/%n
SlurmdPidFile=/run/%n.pid
SlurmctldLogFile=/run/slurmctld.log
SlurmdLogFile=/run/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1
KillWait=2
NodeName=n[1-3] CPUs=8
PartitionName=all Nodes=ALL Default=YES
"""


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def start_host(number):
    name = f"n{number}"
    (RUN / name).mkdir()
    script = (f"hostname {name}; echo; read connected; ip link set lo up; ip link set eth0 up;"
              f"ip address add 10.213.79.{number}/24 dev eth0; exec slurmd -D -N {name}")
    host = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", script], env=ENVIRONMENT, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    host.stdout.readline()
    ip("link", "add", name, "master", "br0", "up", "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
    print(file=host.stdin, flush=True)
    return host


def setUpModule():
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    subprocess.run(["hostname", "head"], check=True)
    ENVIRONMENT["SLURM_CONF"] = "/run/slurm.conf"
    os.umask(0o077)
    (RUN / "slurm.conf").write_text(CONFIGURATION)
    (RUN / "hosts").write_text("127.0.0.1 localhost\n10.213.79.9 head\n" + "".join(f"10.213.79.{n} n{n}\n" for n in (1, 2, 3)))
    (RUN / "munge.key").write_bytes(secrets.token_bytes(128))
    (RUN / "token").write_text(secrets.token_hex(32))
    (RUN / "state").mkdir()
    subprocess.run(["mount", "--bind", "/run/hosts", "/etc/hosts"], check=True)
    ip("link", "set", "lo", "up")
    ip("link", "add", "br0", "up", "type", "bridge")
    ip("address", "add", "10.213.79.9/24", "dev", "br0")
    munge = [f"--{name}-file=/run/munge.{name}" for name in ("key", "pid", "log", "seed")]
    daemons = [subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
               for command in (["munged", "--foreground", "--socket=/run/munge.socket", *munge], ["slurmctld", "-D"])]
    for daemon in (*daemons, *map(start_host, (1, 2, 3))):
        unittest.addModuleCleanup(daemon.communicate)
        unittest.addModuleCleanup(daemon.kill)
    deadline = time.monotonic() + 60
    while finish(start(["sinfo", "-h", "-o", "%T %D"]))[1].strip() != "idle 3":
        if time.monotonic() > deadline:
            raise AssertionError("\n".join(log.read_text() for log in RUN.glob("*.log")))
        time.sleep(0.2)
    kinds = "".join(finish(start(["srun", "--mpi=list"]))[1:])
    Slurm.spaces = [kind for kind in ("pmi2", "pmix") if re.search(rf"\b{kind}\b", kinds)]


class Slurm(unittest.TestCase):
    assert_all_well = launchers_test.Launchers.assert_all_well
    token = {"TUTTI_TOKEN_FILE": "/run/token"}

    def batch(self, script, *options):
        """The outputs of the job's tasks, for which `script` is run."""
        (RUN / "script").write_text(f"#!/bin/bash\n{script}\n")
        for old in RUN.glob("*.out"):
            old.unlink()
        status, _, errors = finish(start(["sbatch", "--wait", "--output=/run/%a.out", *options, "/run/script"]))
        outputs = [path.read_text() for path in sorted(RUN.glob("*.out"))]
        self.assertEqual(status, 0, errors + "".join(outputs))
        return outputs

    def test_one_host(self):
        for kind in ("none", *self.spaces):
            with self.subTest(kind=kind):
                self.assert_all_well(3, [finish(start(["srun", f"--mpi={kind}", "-N1", "-n3", PROGRAM, "auto"]))])

    def test_several_hosts(self):
        """Hosts with 3 and 1, with 4, 1 and 1, and with one rank each; and two programs of a heterogeneous job."""
        program = [PROGRAM, "auto"]
        for kind, variables in (("none", self.token), *((kind, {}) for kind in self.spaces)):
            for ranks, job in ((4, ["-N2", "-n4"]), (6, ["-N3", "-n6"]), (3, ["-N3", "-n3"]),
                               (3, ["-N1", "-n1", *program, ":", "-N1", "-n2"])):
                with self.subTest(kind=kind, job=job):
                    self.assert_all_well(ranks, [finish(start(["srun", f"--mpi={kind}", *job, *program], **variables))])
        if "pmix" in self.spaces:
            programs = f"for i in 1 2 3 4 5; do {PROGRAM} auto || exit 1; done"
            _, output, errors = finish(start(["srun", "--mpi=pmix", "-N3", "-n6", "sh", "-c", programs]))
            self.assertEqual(output.count("of 6: ok"), 30, errors)

    def test_several_hosts_without_a_token_are_told_once_what_to_do(self):
        status, _, errors = finish(start(["srun", "--mpi=none", "-N2", "-n4", PROGRAM]))
        self.assertNotEqual(status, 0)
        self.assertEqual(len(re.findall("srun --mpi=pmi2 or --mpi=pmix .*TUTTI_TOKEN_FILE", errors)), 1, errors)
        self.assertEqual(len(re.findall("authentication; set TUTTI_TOKEN_FILE or ", errors)), 3, errors)

    def test_steps_at_once_on_one_host_and_after_each_other(self):
        first = f"srun --exact -n2 {TUTTI} bench all_reduce -s 1M --iters 1000000 > /run/first & until grep size /run/first; do sleep 0.1; done"
        step = f"srun --exact -n2 {PROGRAM} auto"
        [output] = self.batch(f"{first}; {step} && {step}; ended=$?; kill $! && exit $ended", "-N1", "-n4")
        self.assertEqual(output.count("of 2: ok"), 4)

    def test_an_array_of_scripts_with_srun_and_tutti_run(self):
        outputs = self.batch(f"srun {PROGRAM} auto && {TUTTI} run -n 2 {PROGRAM} auto", "--array=0-2", "-n2")
        self.assertEqual([output.count("of 2: ok") for output in outputs], [4, 4, 4])

    def test_torchrun_in_a_step(self):
        if not shutil.which("torchrun"):
            self.skipTest("torchrun is not installed")
        self.assert_all_well(4, [finish(start(
            ["srun", f"--mpi={self.spaces[-1]}", "-N2", "-n2", "torchrun", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d",
             "--rdzv-endpoint=n1:29400", "--rdzv-id=1", "--no-python", PROGRAM, "auto"], **self.token))])

    def test_a_step_in_a_rank_of_another_step(self):
        """The inner step inherits the variables of the outer one: those of PMI replace Slurm's."""
        for kind in self.spaces:
            outer = f"srun --mpi={kind} -N1 -n1 srun --overlap --mpi=none -N2 -n3 {PROGRAM} auto; true"
            [output] = self.batch(outer, "-N2", "-n4", "--export=ALL,TUTTI_TOKEN_FILE=/run/token")
            self.assertEqual(len(re.findall("this is step" if kind == "pmi2" else "of 3: ok", output)), 3, output)

    def start_bench(self):
        """srun, and the process of each of 4 ranks on two hosts."""
        step = start(["srun", f"--mpi={self.spaces[-1]}", "-N2", "-n4", TUTTI, "bench", "all_reduce", "-s", "8", "--iters", "1000000"])
        pids = {}
        while len(pids) < 4:
            line = step.stdout.readline()
            self.assertTrue(line, step.stderr.read() if not line else "")
            pids.update((int(rank), int(pid)) for rank, pid in re.findall(r"(\d) n\d pid (\d+)", line))
        return step, pids

    def test_a_killed_rank_is_named(self):
        for killed, words in ((3, "the connection to rank 3 ended"), (0, "rank 3: peer_lost: .*rank 0 .*which served the store")):
            with self.subTest(killed=killed):
                step, pids = self.start_bench()
                os.kill(pids[killed], signal.SIGKILL)
                started = time.monotonic()
                _, _, errors = finish(step)
                self.assertLess(time.monotonic() - started, 10)
                self.assertRegex(errors, words)
                self.assertRegex(errors, r"tasks? (0-2|1-2): Exited with exit code 70")

    def test_a_cancelled_job_leaves_no_process(self):
        step, pids = self.start_bench()
        [job] = finish(start(["squeue", "-h", "-o", "%A"]))[1].split()
        self.assertEqual(finish(start(["scancel", job]))[0], 0)
        self.assertNotEqual(finish(step)[0], 0)
        deadline = time.monotonic() + 10
        while any(os.path.exists(f"/proc/{pid}") for pid in pids.values()):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)


if __name__ == "__main__":
    os.environ["PATH"] += ":/usr/sbin"
    if sys.argv[1] != "in_namespaces":
        missing = [tool for tool in TOOLS if not shutil.which(tool)]
        if missing or os.geteuid() != 0 or subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode:
            print(f"skipped: {', '.join(missing)} not installed" if missing else "skipped: needs root and namespaces")
            sys.exit(77)   # To meson: skipped.
        # The shell, process 1, waits for Slurm's orphans.
        os.execvp("unshare", [*NAMESPACES, "sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-B", __file__, "in_namespaces", *sys.argv[1:]])
    TUTTI, PROGRAM = (os.path.abspath(path) for path in sys.argv[2:4])
    del sys.argv[1:4]
    unittest.main(verbosity=2)
