"""Runs a program under launchers with a key-value space (PMI): a server of this file that speaks PMI-1 and can have
faults, and the installed launchers with several hosts: pmi_test.py PATH_OF_TUTTI PROGRAM MPI_DOUBLE
PMIX_DOUBLE [unittest arguments]."""
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from hosts import Hosts

TUTTI = PROGRAM = MPI_DOUBLE = PMIX_DOUBLE = ""
LAUNCHER_VARIABLES = re.compile(r"^(TUTTI_|RANK$|WORLD_SIZE$|LOCAL_|GROUP_|MASTER_|TORCHELASTIC_|OMPI_|PMIX?_|MPI_|SLURM_)")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not LAUNCHER_VARIABLES.match(name)}
TIMEOUT = 60


def setUpModule():
    # Open MPI keeps the folder of its session there, for which two tests at once would race.
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    unittest.addModuleCleanup(folder.cleanup)
    ENVIRONMENT["TMPDIR"] = folder.name
    script = [TUTTI, "run", "-n", "1", "sh", "-c", 'echo "token=$TUTTI_TOKEN_FILE"']
    if "token=/" not in subprocess.run(script, env=ENVIRONMENT, text=True, capture_output=True, timeout=TIMEOUT).stdout:
        raise unittest.SkipTest("built without OpenSSL")


class Launcher:
    """Starts ranks as a launcher with PMI-1, one on each of as many hosts. `changes` replaces an answer: a function of
    the command and the answer. A changed answer of None is none; of "" it closes the connection."""

    def __init__(self, size, change=lambda command, answer: answer):
        self.size, self.change = size, change
        self.lock, self.values, self.waiting, self.commands = threading.Lock(), {}, [], []
        self.closed = 0   # Connections that a rank has closed by cmd=finalize.

    def run(self, *arguments, environments=None, **variables):
        """(status, stdout, stderr) of each rank. `environments`: more variables by rank."""
        ranks = []
        for rank in range(self.size):
            ours, theirs = socket.socketpair()
            os.set_inheritable(theirs.fileno(), True)
            environment = {**ENVIRONMENT, "PMI_FD": str(theirs.fileno()), "PMI_RANK": str(rank), "PMI_SIZE": str(self.size),
                           "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1", **variables, **(environments or {}).get(rank, {})}
            ranks.append(subprocess.Popen(arguments, env=environment, text=True, close_fds=False, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE))
            theirs.close()
            threading.Thread(target=self.serve, args=(ours,), daemon=True).start()
        ends = []
        for rank in ranks:
            try:
                output, errors = rank.communicate(timeout=TIMEOUT)
            finally:
                rank.kill()
            ends.append((rank.returncode, output, errors))
        return ends

    def serve(self, connection):
        lines = connection.makefile()
        for line in lines:
            command = dict(word.split("=", 1) for word in line.split())
            with self.lock:
                self.commands.append(line.rstrip("\n"))
                answers = self.answer(command, connection)
            for to, answer in answers:
                answer = self.change(command["cmd"], answer)
                if answer == "":
                    to.shutdown(socket.SHUT_RDWR)
                elif answer is not None:
                    try:
                        to.sendall((answer + "\n").encode())
                    except OSError:
                        pass   # The rank has ended.
            if command["cmd"] == "finalize":
                connection.close()
                return

    def answer(self, command, connection):
        name = command["cmd"]
        if name == "init":
            return [(connection, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")]
        if name == "get_maxes":
            return [(connection, "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024")]
        if name == "get_my_kvsname":
            return [(connection, "cmd=my_kvsname kvsname=kvs_1")]
        if name == "put":
            self.values[command["key"]] = command["value"]
            return [(connection, "cmd=put_result rc=0 msg=success")]
        if name == "barrier_in":
            self.waiting.append(connection)
            if len(self.waiting) < self.size:
                return []
            waiting, self.waiting = self.waiting, []
            return [(one, "cmd=barrier_out") for one in waiting]
        if name == "get":
            value = self.values.get(command["key"])
            return [(connection, f"cmd=get_result rc=0 msg=success value={value}" if value else
                     f"cmd=get_result rc=-1 msg=key_{command['key']}_not_found value=unknown")]
        assert name == "finalize", name
        self.closed += 1
        return [(connection, "cmd=finalize_ack")]


class Server(unittest.TestCase):
    def assert_all_well(self, ends):
        for status, _, errors in ends:
            self.assertEqual(status, 0, errors)
        passed = sorted(re.findall(r"rank \d+ of \d+: ok", "".join(output for _, output, _ in ends)))
        self.assertEqual(passed, [f"rank {rank} of {len(ends)}: ok" for rank in range(len(ends))])

    def assert_refused(self, ends, *words):
        for status, output, errors in ends:
            self.assertNotEqual(status, 0, output)
            for word in words:
                self.assertRegex(errors, word)

    def test_ranks_of_several_hosts_meet_without_an_address(self):
        launcher = Launcher(3)
        self.assert_all_well(launcher.run(PROGRAM))
        # A launcher ends the ranks of a job whose connection ends otherwise.
        self.assertEqual(launcher.closed, 3)
        form, port, token, *addresses = launcher.values["tutti-store"].split(",")
        self.assertEqual((form, len(token)), ("tutti1", 64))
        self.assertTrue(int(port) > 0 and addresses)

    def test_the_tool_does(self):
        (status, output, errors), _ = Launcher(2).run(TUTTI, "bench", "-s", "8", "--iters", "10")
        self.assertEqual(status, 0, errors)
        self.assertIn("all_reduce", output)

    def test_a_token_file_is_used_and_not_published(self):
        with tempfile.NamedTemporaryFile("w") as token, tempfile.NamedTemporaryFile("w") as other:
            for file in (token, other):
                file.write(secrets.token_hex(32))
                file.flush()
            launcher = Launcher(2)
            self.assert_all_well(launcher.run(PROGRAM, TUTTI_TOKEN_FILE=token.name))
            self.assertEqual(launcher.values["tutti-store"].split(",")[2], "")
            ends = Launcher(2).run(TUTTI, "bench", "--timeout", "2s", environments={0: {"TUTTI_TOKEN_FILE": token.name},
                                                                                    1: {"TUTTI_TOKEN_FILE": other.name}})
            self.assertIn("another token", ends[1][2])

    def test_an_open_store_has_a_token_too(self):
        launcher = Launcher(2)
        self.assert_all_well(launcher.run(PROGRAM, TUTTI_STORE_OPEN="1"))
        self.assertEqual(len(launcher.values["tutti-store"].split(",")[2]), 64)

    def test_an_address_of_the_user_comes_first(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        launcher = Launcher(2)
        self.assert_all_well(launcher.run(PROGRAM, TUTTI_STORE=f"tcp://127.0.0.1:{port}"))
        self.assertEqual(launcher.commands, [])

    def test_another_version_is_refused_with_both_sides(self):
        def change(command, answer):
            return "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=-1" if command == "init" else answer
        self.assert_refused(Launcher(2, change).run(PROGRAM), "answered 'cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=-1' "
                            "to 'cmd=init pmi_version=1 pmi_subversion=1'", "TUTTI_STORE")

    def test_a_value_of_another_version_is_refused(self):
        def change(command, answer):
            return answer.replace("value=tutti1", "value=tutti9") if command == "get" else answer
        status, _, errors = Launcher(2, change).run(TUTTI, "bench", "--timeout", "1s")[1]
        self.assertNotEqual(status, 0)
        self.assertRegex(errors, "begins with 'tutti1'.* same version")
        self.assertNotRegex(errors, "[0-9a-f]{64}")

    def test_a_rank_that_never_comes(self):
        launcher = Launcher(2)
        launcher.size = 3
        ends = launcher.run(TUTTI, "bench", "--timeout", "1s", environments={2: {"PMI_FD": "none"}})
        self.assert_refused(ends[:2], "not answered 'cmd=barrier_in' in time: not all ranks")
        self.assert_refused(ends[2:], "PMI_FD is 'none'")

    def test_a_launcher_that_goes_away(self):
        self.assert_refused(Launcher(2, lambda command, answer: "" if command == "get_my_kvsname" else answer).run(PROGRAM),
                            "launcher closed the connection.*get_my_kvsname.*TUTTI_STORE")

    def test_a_second_program_of_a_rank_is_told(self):
        ends = Launcher(2).run("sh", "-c", '"$0" && "$0"', PROGRAM)
        self.assertEqual([output.count("ok") for _, output, _ in ends], [1, 1])
        self.assert_refused(ends, "PMI_FD.*an earlier program of this rank.*TUTTI_STORE")

    def test_mpi_of_the_program_owns_the_connection(self):
        launcher = Launcher(2)
        self.assert_all_well(launcher.run(PROGRAM, LD_PRELOAD=MPI_DOUBLE, TUTTI_TEST_MPI="initialized"))
        used = {line.split()[0] for line in launcher.commands}
        self.assertFalse(used & {"cmd=init", "cmd=finalize"}, used)
        self.assertIn("cmd=barrier_in", used)
        for state in ("loaded", "finalized"):
            launcher = Launcher(2)
            self.assert_refused(launcher.run(PROGRAM, LD_PRELOAD=MPI_DOUBLE, TUTTI_TEST_MPI=state),
                                "uses MPI.*between MPI_Init and MPI_Finalize")
            self.assertEqual(launcher.commands, [])

    def test_ranks_of_one_host_that_do_not_see_the_launcher_are_refused(self):
        alone = ["unshare", "--pid", "--fork", "--mount-proc"]   # The shell is process 1.
        if subprocess.run([*alone, "true"], capture_output=True).returncode:
            self.skipTest("no PID namespaces here")
        launcher = Launcher(2)
        ends = launcher.run(*alone, "sh", "-c", '"$0" bench --timeout 2s; exit $?', TUTTI, MPI_LOCALNRANKS="2")
        self.assert_refused(ends, "2 ranks need a store to find each other, and PMI gives no address")
        self.assertEqual(launcher.commands, [])

    def test_rank_0_that_cannot_host_ends_the_others(self):
        with tempfile.NamedTemporaryFile("w") as token:
            token.write(secrets.token_hex(32))
            token.flush()
            command = 'if [ "$PMI_RANK" = 0 ]; then ulimit -n 8; fi; exec "$0"'
            ends = Launcher(2).run("bash", "-c", command, PROGRAM)
        self.assert_refused(ends[1:], "rank 0 cannot host the store")
        self.assert_refused(ends[:1], "store|descriptor|files")

    def test_a_text_that_cannot_be_published_ends_the_others(self):
        def change(command, answer):
            return "cmd=put_result rc=-1 msg=no_room" if command == "put" else answer
        started = time.monotonic()
        ends = Launcher(2, change).run(TUTTI, "bench", "--timeout", "20s")
        self.assert_refused(ends[:1], "answered 'cmd=put_result rc=-1 msg=no_room'")
        self.assert_refused(ends[1:], "rank 0 cannot host the store")
        self.assertLess(time.monotonic() - started, 15)

    def test_a_value_without_room_for_an_address(self):
        ends = Launcher(2, lambda command, answer: answer.replace("vallen_max=1024", "vallen_max=80")).run(TUTTI, "bench", "--timeout", "20s")
        self.assert_refused(ends[:1], "values of 79 letters")
        self.assert_refused(ends[1:], "rank 0 cannot host the store")


class Installed(unittest.TestCase):
    """Hydra, of MPICH or Intel MPI, with two hosts: addresses of loopback, or network namespaces."""
    assert_all_well = Server.assert_all_well

    def setUp(self):
        for name in ("mpirun.mpich", "mpiexec.hydra", "mpirun"):
            path = shutil.which(name)
            version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout if path else ""
            if "HYDRA" in version or "Intel(R) MPI" in version:
                self.mpirun, self.kind = path, "-bootstrap" if "Intel(R)" in version else "-launcher"
                return
        self.skipTest("Hydra is not installed")

    def run_on(self, hosts, remote, *arguments, before=()):
        """Runs two ranks on each host. `remote` is the shell line that starts "$@" on host $host."""
        with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as script:
            script.write(f'#!/bin/sh\nhost=$1\nshift\n{remote}\n')
        self.addCleanup(os.unlink, script.name)
        os.chmod(script.name, 0o755)
        command = [*before, self.mpirun, self.kind, "rsh", self.kind + "-exec", script.name, "-hosts", ",".join(hosts),
                   "-n", str(2 * len(hosts)), "-ppn", "2", *arguments]
        done = subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(re.findall(r"rank \d of 4: ok", done.stdout)), [f"rank {rank} of 4: ok" for rank in range(4)])

    def test_two_hosts_need_no_address(self):
        self.run_on(["127.0.0.1", "127.0.0.2"], 'exec sh -c "$*"', PROGRAM)

    def test_two_hosts_in_namespaces(self):
        first, second = Hosts(self).names
        self.run_on(["10.213.77.1", "10.213.77.2"], f'exec ip netns exec {second} sh -c "$*"', PROGRAM,
                    before=["ip", "netns", "exec", first])


class PmixLibrary(unittest.TestCase):
    """Ranks with Open MPI's variables and a library that stands in for libpmix."""
    assert_all_well, assert_refused = Server.assert_all_well, Server.assert_refused

    def run_ranks(self, size, *arguments, environments=None, unanswered=None, **variables):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(folder + "/lib")
            with open(folder + "/size", "w") as file:
                file.write(str(size))
            if unanswered:
                open(os.path.join(folder, unanswered), "w").close()
            os.symlink(PMIX_DOUBLE, folder + "/lib/libpmix.so.2")
            shared = {**ENVIRONMENT, "OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                      "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "PMIX_NAMESPACE": "job@1", "PMIX_PREFIX": folder,
                      "TUTTI_TEST_PMIX": folder, **variables}
            ranks = [subprocess.Popen(arguments, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      env={**shared, "OMPI_COMM_WORLD_RANK": str(rank), "PMIX_RANK": str(rank),
                                           **(environments or {}).get(rank, {})}) for rank in range(size)]
            ends = []
            for rank in ranks:
                output, errors = rank.communicate(timeout=TIMEOUT)
                ends.append((rank.returncode, output, errors))
            self.finalized = len([name for name in os.listdir(folder) if name.startswith("finalized")])
            return ends

    def test_ranks_of_several_hosts_meet_without_an_address(self):
        self.assert_all_well(self.run_ranks(3, PROGRAM))
        self.assertEqual(self.finalized, 3)   # Otherwise the launcher ends the job.

    def test_other_launchers_with_pmix(self):
        slurm = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_JOB_NODELIST": "nowhere"}
        for rank_name, launcher in (("PALS_RANKID", {"PMI_SIZE": "2"}), ("SLURM_PROCID", {**slurm, "PMIX_NAMESPACE": "slurm.pmix.7.1"})):
            with self.subTest(rank_name=rank_name):
                ranks = {rank: {"OMPI_COMM_WORLD_RANK": "", rank_name: str(rank)} for rank in range(2)}
                self.assert_all_well(self.run_ranks(2, PROGRAM, environments=ranks, OMPI_COMM_WORLD_SIZE="", **launcher))

    def test_a_rank_that_never_comes(self):
        ends = self.run_ranks(2, TUTTI, "bench", "--timeout", "1s", environments={1: {"PMIX_PREFIX": "/nowhere", "LD_LIBRARY_PATH": ""}})
        self.assert_refused(ends[:1], "the fence has not ended in time: not all ranks")

    def test_a_launcher_that_does_not_answer(self):
        # Rank 1 waits for rank 0 before it gets the value.
        for call, waits, timeout in (("PMIx_Init", (0, 1), "0.1s"), ("PMIx_Commit", (0,), "1s"), ("PMIx_Get", (1,), "2s")):
            with self.subTest(call=call):
                started = time.monotonic()
                ends = self.run_ranks(2, TUTTI, "bench", "--timeout", timeout, unanswered=call)
                self.assertLess(time.monotonic() - started, 20)
                self.assert_refused([ends[rank] for rank in waits], f"PMIx: the launcher has not answered {call} in time")

    def test_another_rank_is_refused(self):
        ends = self.run_ranks(2, TUTTI, "bench", "--timeout", "1s", environments={1: {"PMIX_RANK": "7"}})
        self.assert_refused(ends[1:], "PMIx: this process is rank 7 of job job@1, but rank 1 of the world")

    def test_mpi_of_the_program_comes_first(self):
        self.assert_refused(self.run_ranks(2, PROGRAM, LD_PRELOAD=MPI_DOUBLE, TUTTI_TEST_MPI="loaded"),
                            "uses MPI.*has not been initialised")
        self.assert_all_well(self.run_ranks(2, PROGRAM, LD_PRELOAD=MPI_DOUBLE, TUTTI_TEST_MPI="initialized"))


class OpenMpi(unittest.TestCase):
    """Open MPI 5 on two hosts, through PMIx."""
    assert_refused = Server.assert_refused

    def run_ranks(self, *arguments, **variables):
        mpirun = shutil.which("mpirun")
        version = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout if mpirun else ""
        if not re.search(r"Open MPI\) [5-9]", version):
            self.skipTest("Open MPI 5 is not installed")
        first, second = Hosts(self).names
        with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as script:
            script.write('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nshift\n'   # Options, and the host.
                         f'exec ip netns exec {second} sh -c "$*"\n')
        self.addCleanup(os.unlink, script.name)
        os.chmod(script.name, 0o755)
        command = ["ip", "netns", "exec", first, mpirun, "--prtemca", "plm_ssh_agent", script.name, "--prtemca", "prte_if_include",
                   "wire0", "--host", "10.213.77.1:2,10.213.77.2:2", "-n", "4", *arguments]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return subprocess.run(command, env={**ENVIRONMENT, **root, **variables}, text=True, capture_output=True, timeout=TIMEOUT)

    def test_two_hosts_need_no_address(self):
        done = self.run_ranks(PROGRAM)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(re.findall(r"rank \d of 4: ok", done.stdout)), [f"rank {rank} of 4: ok" for rank in range(4)])

    def test_a_rank_that_never_comes(self):
        done = self.run_ranks("bash", "-c", '[ $OMPI_COMM_WORLD_RANK = 3 ] && exec sleep 3; exec "$0" bench --timeout 1s', TUTTI)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the fence has not ended in time: not all ranks", done.stderr)

    def test_another_rank_is_refused(self):
        done = self.run_ranks("bash", "-c", 'export OMPI_COMM_WORLD_RANK=$((3 - OMPI_COMM_WORLD_RANK)); exec "$0"', PROGRAM)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"PMIx: this process is rank \d of job .*, but rank \d of the world")

    def test_a_launcher_without_its_library(self):
        done = self.run_ranks("bash", "-c", 'export PMIX_PREFIX=/nowhere LD_LIBRARY_PATH=; exec "$0"', PROGRAM)
        if done.returncode == 0:
            self.skipTest("the system has a libpmix of its own")
        self.assertRegex(done.stderr, "libpmix.so.2.*TUTTI_STORE")


if __name__ == "__main__":
    TUTTI, PROGRAM, MPI_DOUBLE, PMIX_DOUBLE = (os.path.abspath(sys.argv.pop(1)) for _ in range(4))
    unittest.main(verbosity=2)
