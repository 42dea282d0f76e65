"""Runs one program, unchanged, under every launcher: launchers_test.py PATH_OF_TUTTI PROGRAM SURVIVING_PROGRAM
[unittest arguments]. Launchers that are not installed or not permitted here are skipped with a
message."""
import ctypes
import os
import pathlib
import random
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

from hosts import ADDRESSES, Hosts, ip

TUTTI = PROGRAM = SURVIVING = ""
LAUNCHER_VARIABLES = re.compile(r"^(TUTTI_|RANK$|WORLD_SIZE$|LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|OMPI_|PMIX?_|MPI_|"
                                r"PALS_|SLURM_)")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not LAUNCHER_VARIABLES.match(name)}
TIMEOUT = 60


def free_port(first=1024, last=65000, at_once=1):
    """The first of several consecutive free ports."""
    while True:
        port = random.randint(first, last)
        try:
            for number in range(port, port + at_once):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
            return port
        except OSError:
            continue


def installed(*names, says=""):
    """The first of the programs that is installed and whose version text has this name."""
    for name in names:
        path = shutil.which(name)
        if path and says in subprocess.run([path, "--version"], capture_output=True, text=True).stdout:
            return path
    raise unittest.SkipTest(f"{names[0]} is not installed")


def setUpModule():
    # Open MPI keeps the folder of its session there, for which two tests at once would race.
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    unittest.addModuleCleanup(folder.cleanup)
    ENVIRONMENT["TMPDIR"] = folder.name


def start(arguments, preexec_fn=None, **variables):
    return subprocess.Popen(arguments, env={**ENVIRONMENT, **variables}, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, preexec_fn=preexec_fn)


def forbid_memfd():
    """Makes memfd_create() fail in this process and its children, as the seccomp filter of a container may."""
    call = {"x86_64": 319, "aarch64": 279}[os.uname().machine]
    # Load the number of the call; if it is this one, return EPERM, otherwise allow it.
    code = b"".join(struct.pack("HBBI", *line) for line in ((0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50001),
                                                            (0x06, 0, 0, 0x7FFF0000)))
    code = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(code) // 8, ctypes.addressof(code))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(38, 1, 0, 0, 0) != 0 or prctl(22, 2, program) != 0:   # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        raise OSError(ctypes.get_errno(), "a seccomp filter is not permitted")


def finish(process):
    """(status, stdout, stderr)."""
    try:
        output, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    return process.returncode, output, errors


class Launchers(unittest.TestCase):
    def assert_all_well(self, ranks, ends):
        for status, _, errors in ends:
            self.assertEqual(status, 0, errors)
        passed = sorted(re.findall(r"rank \d+ of \d+: ok", "".join(output for _, output, _ in ends)))
        self.assertEqual(passed, [f"rank {rank} of {ranks}: ok" for rank in range(ranks)])

    def test_tutti_run(self):
        self.assert_all_well(4, [finish(start([TUTTI, "run", "-n", "4", PROGRAM]))])

    def test_the_survivors_of_rank_0_go_on_under_tutti_run(self):
        status, output, errors = finish(start([TUTTI, "run", "--keep-going", "-n", "4", SURVIVING]))
        self.assertEqual(status, 0, errors)
        self.assertEqual(sorted(output.splitlines()), [f"[{rank + 1}] rank {rank} of 3: ok" for rank in range(3)])
        self.assertRegex(errors, r"^rank 0 \(pid \d+\) was ended by signal 9 \(Killed\); the other ranks go on\n$")

    def test_tutti_run_takes_the_ports_of_a_range(self):
        first = free_port(at_once=20)
        ports = f"{first}-{first + 19}"
        script = 'echo "${TUTTI_STORE##*:} $MASTER_PORT"'
        _, output, _ = finish(start([TUTTI, "run", "-n", "1", "sh", "-c", script], TUTTI_PORTS=ports))
        taken = set(map(int, output.split()[1:]))
        self.assertEqual(len(taken & set(range(first, first + 20))), 2, output)
        _, _, errors = finish(start([TUTTI, "run", "-n", "2", PROGRAM], TUTTI_PORTS=ports))
        self.assertRegex(errors, f"backend 'gloo' cannot be used: TUTTI_PORTS is {ports}, .*; choose tcp")

    def test_tutti_run_keeps_its_token_from_others(self):
        script = ('tr "\\0" "\\n" < /proc/$PPID/cmdline; tr "\\0" "\\n" < /proc/$$/environ; echo "token: $(cat $TUTTI_TOKEN_FILE)";'
                  'stat -L -c "mode: %a" $TUTTI_TOKEN_FILE')
        status, output, errors = finish(start([TUTTI, "run", "-n", "1", "sh", "-c", script]))
        self.assertEqual(status, 0, errors)
        token = re.search("token: ([0-9a-f]{64})", output)
        if not token:
            self.skipTest("built without OpenSSL")
        self.assertEqual(output.count(token[1]), 1, "neither an argument nor a variable")
        self.assertIn("mode: 400", output)
        self.assertNotIn(token[1], errors)

    def test_tutti_run_holds_its_token_without_memfd(self):
        run = [TUTTI, "run", "-n", "2", "sh", "-c", 'stat -L -c "mode: %a links: %h" $TUTTI_TOKEN_FILE; exec "$0"', PROGRAM]
        status, output, errors = finish(start(run, forbid_memfd))
        self.assert_all_well(2, [(status, output, errors)])
        if "links" not in output:
            self.skipTest("built without OpenSSL")
        self.assertEqual(output.count("mode: 400 links: 0"), 2, output)
        read_only = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none /dev/shm && exec "$@"', "-"]
        if subprocess.run([*read_only, "true"], capture_output=True).returncode != 0:
            self.skipTest("mount namespaces are not permitted here")
        status, _, errors = finish(start([*read_only, *run], forbid_memfd, TMPDIR="/proc"))
        self.assertEqual(status, 69, errors)
        self.assertRegex(errors, r"memfd_create is not permitted \(.*TUTTI_TOKEN_FILE")

    def test_a_pipe_gives_the_token_to_tutti_run(self):
        token = secrets.token_hex(32)
        end = finish(start(["bash", "-c", f"TUTTI_TOKEN_FILE=<(sleep 0.1; printf %s {token}) $0 run -n 2 $1", TUTTI, PROGRAM]))
        if "OpenSSL" in end[2]:
            self.skipTest("built without OpenSSL")
        self.assert_all_well(2, [end])

    def test_a_token_in_the_environment_is_refused(self):
        for program in ([TUTTI, "run", "-n", "2", PROGRAM], [PROGRAM]):
            status, output, errors = finish(start(program, TUTTI_TOKEN="s" * 40, TUTTI_RANK="0", TUTTI_SIZE="1"))
            self.assertNotEqual(status, 0, output)
            self.assertRegex(errors, r"TUTTI_TOKEN is set: .*TUTTI_TOKEN_FILE=<\(")
            self.assertNotRegex(errors, "warning|ssss")

    def test_containers_of_one_host_learn_what_to_set(self):
        container = ["unshare", "--user", "--map-root-user"]
        if subprocess.run([*container, "true"], capture_output=True).returncode != 0:
            self.skipTest("user namespaces are not permitted here")
        variables = {"TUTTI_SIZE": "2", "TUTTI_STORE": f"tcp://127.0.0.1:{free_port()}", "TUTTI_BACKEND": "auto"}
        bench = [TUTTI, "bench", "barrier", "--iters", "3", "-f", "json"]
        ranks = [start([*(container if rank else []), *bench], TUTTI_RANK=str(rank), **variables) for rank in range(2)]
        ends = [finish(rank) for rank in ranks]
        self.assertEqual([status for status, _, _ in ends], [0, 0], ends)
        self.assertRegex(ends[0][1], r"ranks 0 and 1 run on one kernel, but differ in the user namespace \(user:\[\d+\] and "
                                     r"user:\[\d+\]; pod: hostUsers: true; docker: --userns=host\)")

    def test_a_program_without_the_token_changes_nothing(self):
        with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w") as wrong:
            wrong.write(secrets.token_hex(32))
            wrong.flush()
            for rank in (0, 1):
                os.mkfifo(f"{folder}/{rank}")
            script = 'echo "$TUTTI_STORE token=$TUTTI_TOKEN_FILE"; read go < "$0/$TUTTI_RANK"; exec "$1"'
            job = start([TUTTI, "run", "-n", "2", "sh", "-c", script, folder, PROGRAM])
            try:
                store, port, token = re.search(r"(tcp://127\.0\.0\.1:(\d+)) token=(.*)", job.stdout.readline()).groups()
                if not token:
                    self.skipTest("built without OpenSSL")
                rank = {"TUTTI_RANK": "1", "TUTTI_SIZE": "2", "TUTTI_STORE": store, "TUTTI_STORE_HOSTED": "1"}
                for variables, words in (({}, "needs a token"), ({"TUTTI_TOKEN_FILE": wrong.name}, "another token")):
                    status, output, errors = finish(start([PROGRAM], **rank, **variables))
                    self.assertNotEqual(status, 0)
                    self.assertNotIn("ok", output)
                    self.assertIn(words, errors)
                for _ in range(100):
                    self.write_a_key(int(port))
            finally:
                for number in (0, 1):   # Opens when the rank has opened its end.
                    open(f"{folder}/{number}", "w").close()
            status, output, errors = finish(job)
            self.assert_all_well(2, [(status, output, errors)])
            self.assertLessEqual(errors.count("not admitted"), 1, errors)

    def write_a_key(self, port):
        """What ended a job before the store had tokens: the result of a rendezvous, written before the ranks come."""
        def field(text):
            return len(text).to_bytes(4, "little") + text
        body = field(b"world/failed") + field(b"\xff" * 40)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
            peer.sendall(b"\xd9tuttiC\n" + bytes([2, 0, 0, 0, 0, 0, 0, 0])
                         + len(body).to_bytes(4, "little") + bytes([1, 0, 0, 0]) + (1).to_bytes(8, "little") + body)
            reply = b"".join(iter(lambda: peer.recv(4096), b""))
        self.assertIn(b"needs a token", reply)

    def test_open_mpi(self):
        mpirun = installed("mpirun.openmpi", "mpirun", says="Open MPI")
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        command = [mpirun, "--oversubscribe", "-x", "MASTER_ADDR", "-x", "MASTER_PORT", "-n", "3", PROGRAM]
        port = str(free_port(at_once=2))
        self.assert_all_well(3, [finish(start(command, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **root))])
        # On one host they need no address: two jobs at once, each through a shell.
        command = [mpirun, "--oversubscribe", "-n", "2", "sh", "-c", f"{PROGRAM}; exit $?"]
        for job in [start(command, **root) for _ in range(2)]:
            self.assert_all_well(2, [finish(job)])

    def test_open_mpi_with_a_store_that_rank_0_hosts(self):
        mpirun = installed("mpirun.openmpi", "mpirun", says="Open MPI")
        store = f"tcp://127.0.0.1:{free_port()}"
        self.assert_all_well(2, [finish(start([mpirun, "--oversubscribe", "-x", f"TUTTI_STORE={store}", "-n", "2", PROGRAM],
                                              OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"))])

    def test_a_launcher_without_an_address_on_one_host(self):
        """Two jobs at once, of a launcher that sets ranks alone."""
        script = 'for r in 0 1; do PMI_RANK=$r PMI_SIZE=2 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=$r sh -c "$0; exit \\$?" & done; wait'
        for job in [start(["bash", "-c", script, PROGRAM]) for _ in range(2)]:
            self.assert_all_well(2, [finish(job)])
        # A launcher within a rank of another one, whose variables it has itself.
        inner = f"{sys.executable} -c 'import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)'"
        outer = f'PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0 PMI_FD=7 exec bash -c "$1" "$0"'
        job = f'for r in 0 1; do PMI_FD=9 PMI_RANK=$r PMI_SIZE=2 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=$r {inner} "$0" & done; wait'
        for both in [start(["bash", "-c", outer, PROGRAM, job]) for _ in range(2)]:
            self.assert_all_well(2, [finish(both)])
        # On two hosts one line from every rank names the variable to set.
        status, _, errors = finish(start([PROGRAM], PMI_RANK="0", PMI_SIZE="2", MPI_LOCALNRANKS="1"))
        self.assertNotEqual(status, 0)
        self.assertRegex(errors, r"error: .*2 ranks .* PMI gives no address.* TUTTI_STORE.* MASTER_ADDR")

    def test_mpich(self):
        mpirun = installed("mpirun.mpich", "mpiexec.hydra", "mpirun", says="HYDRA")
        port = str(free_port(at_once=2))
        self.assert_all_well(3, [finish(start([mpirun, "-n", "3", PROGRAM], MASTER_ADDR="127.0.0.1", MASTER_PORT=port))])
        for job in [start([mpirun, "-n", "2", PROGRAM]) for _ in range(2)]:
            self.assert_all_well(2, [finish(job)])
        # Two jobs within a rank of another one.
        both = f"{mpirun} -n 2 {PROGRAM} & {mpirun} -n 2 {PROGRAM}; wait $! || exit 1"
        status, output, errors = finish(start([mpirun, "-n", "1", "sh", "-c", both]))
        self.assertEqual(status, 0, errors)
        self.assertEqual(sorted(re.findall(r"rank . of 2: ok", output)), [f"rank {r // 2} of 2: ok" for r in range(4)])

    def test_torchrun_and_its_restart(self):
        torchrun = shutil.which("torchrun")
        if not torchrun:
            self.skipTest("torchrun is not installed")
        # The store of its agent outlives the restart, and so do the keys of the first attempt.
        script = 'if [ "$TORCHELASTIC_RESTART_COUNT$RANK" = 01 ]; then exit 3; fi; exec "$0"'
        self.assert_all_well(2, [finish(start([torchrun, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
                                               "--no-python", "sh", "-c", script, PROGRAM]))])

    def test_slurms_variables(self):
        slurm = {"SLURM_NTASKS": "3", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_NNODES": "1",
                 "SLURM_JOB_NODELIST": "localhost,unused[3-4]"}
        ranks = [start([PROGRAM], SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), SLURM_NODEID="0", **slurm)
                 for rank in range(3)]
        self.assert_all_well(3, [finish(rank) for rank in ranks])

    def test_by_hand(self):
        store = f"tcp://127.0.0.1:{free_port()}"
        # Rank 0 comes last; the other ranks wait for the store that it hosts.
        ranks = [start([PROGRAM], TUTTI_RANK=str(rank), TUTTI_SIZE="3", TUTTI_STORE=store) for rank in (2, 1, 0)]
        self.assert_all_well(3, [finish(rank) for rank in ranks])

    def test_the_survivors_of_rank_0_with_the_store_go_on_over_another_store(self):
        store = f"tcp://127.0.0.1:{free_port()}"
        with tempfile.TemporaryDirectory() as folder:
            ranks = [start([SURVIVING, folder], TUTTI_RANK=str(rank), TUTTI_SIZE="4", TUTTI_STORE=store)
                     for rank in range(4)]
            killed, *others = [finish(rank) for rank in ranks]
        self.assertEqual(killed[0], -signal.SIGKILL)
        self.assert_all_well(3, others)

    def test_another_launcher_around_it(self):
        # srun starts one launcher per node, which starts the ranks.
        outer = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "nowhere"}
        self.assert_all_well(2, [finish(start([TUTTI, "run", "-n", "2", PROGRAM], **outer))])

    def test_a_rank_left_over_in_the_environment_is_refused(self):
        status, _, errors = finish(start([PROGRAM], RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                                         SLURM_PROCID="1", SLURM_NTASKS="2"))
        self.assertEqual(status, 1)
        self.assertRegex(errors, r"error: .*RANK is 0 .*SLURM_PROCID is 1 ")

    def test_a_program_that_answers_in_the_stores_place_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]

            def answer():
                try:
                    while True:
                        client, _ = other.accept()
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        client.close()
                except OSError:
                    pass

            threading.Thread(target=answer, daemon=True).start()
            launcher = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TUTTI_STORE_PORT": str(port)}
            for rank, words in (("0", "another step of this job, or another job, may use the port; TUTTI_STORE_PORT"), ("1", "does not speak tutti's store protocol")):
                status, _, errors = finish(start([PROGRAM], RANK=rank, **launcher))
                self.assertEqual(status, 1)
                self.assertIn(words, errors)
                self.assertIn(f"127.0.0.1:{port}", errors)
            other.shutdown(socket.SHUT_RDWR)


class OnHosts(unittest.TestCase):
    assert_all_well = Launchers.assert_all_well

    def make_hosts(self, *arguments):
        self.hosts = Hosts(self, *arguments)
        token = tempfile.NamedTemporaryFile("w")   # Mode 0600. On two hosts, a file each.
        self.addCleanup(token.close)
        token.write(secrets.token_hex(32))
        token.flush()
        self.token = {"TUTTI_TOKEN_FILE": token.name}

    def on(self, node, *command, **variables):
        return start(self.hosts.command(node, *command), **variables)


class Namespaces(OnHosts):
    def setUp(self):
        self.make_hosts()

    def run_on(self, node, ranks, *command):
        return self.run_without_token_on(node, ranks, *command, **self.token)

    def run_without_token_on(self, node, ranks, *command, **variables):
        return self.on(node, TUTTI, "run", "-n", str(ranks), "--nnodes", "2", "--node-rank", str(node),
                       "--rendezvous", "10.213.77.1:29400", *command, **variables)

    def test_tutti_run_on_two_nodes(self):
        self.assert_all_well(5, [finish(launch) for launch in (self.run_on(1, 3, PROGRAM), self.run_on(0, 2, PROGRAM))])

    def test_without_a_token_every_node_says_what_to_set(self):
        for status, _, errors in [finish(self.run_without_token_on(node, 1, PROGRAM)) for node in (0, 1)]:
            self.assertNotEqual(status, 0)
            self.assertRegex(errors, "TUTTI_TOKEN_FILE.*TUTTI_STORE_OPEN=1")

    def test_an_open_store_is_asked_for(self):
        launches = [self.run_without_token_on(node, 1, PROGRAM, TUTTI_STORE_OPEN="1") for node in (0, 1)]
        self.assert_all_well(2, [finish(launch) for launch in launches])

    def test_a_node_with_another_token_is_refused(self):
        with tempfile.NamedTemporaryFile("w") as other:
            other.write(secrets.token_hex(32))
            other.flush()
            first = self.run_on(0, 1, "--join-timeout", "10s", PROGRAM)
            status, _, errors = finish(self.run_without_token_on(1, 1, PROGRAM, TUTTI_TOKEN_FILE=other.name))
            self.assertNotEqual(status, 0)
            self.assertIn("another token", errors)
            first.terminate()
            finish(first)

    def test_a_failure_on_one_node_ends_the_other(self):
        script = 'if [ "$RANK" = 2 ]; then exit 19; fi; exec sleep 1000'
        launches = [self.run_on(node, 2, "sh", "-c", script) for node in (0, 1)]
        for status, _, errors in [finish(launch) for launch in launches]:
            self.assertEqual(status, 19, errors)
            self.assertIn("rank 2 on node 1 ", errors)

    def test_ranks_that_slurm_would_start_on_two_nodes(self):
        slurm = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "10.213.77.1,10.213.77.2"}
        ranks = [self.on(rank, PROGRAM, SLURM_PROCID=str(rank), SLURM_LOCALID="0", SLURM_NODEID=str(rank), **slurm,
                         **self.token) for rank in (0, 1)]
        self.assert_all_well(2, [finish(rank) for rank in ranks])


class NamedHosts(OnHosts):
    """Nothing but the address of the store is set. Ranks 0 and 1 are on host 0, and rank 2 is on host 1."""

    def make_named_hosts(self, names=("127.0.1.1 h0\n{1} h1\n", "127.0.1.1 h1\n{0} h0\n"), addresses=ADDRESSES):
        """By default each host's own name is 127.0.1.1, as in Debian's /etc/hosts."""
        self.make_hosts(addresses, [text.format(*addresses) for text in names])

    def ends(self, *command, **variables):
        ranks = [self.on(rank // 2, *command, TUTTI_RANK=str(rank), TUTTI_SIZE="3", **self.token, **variables)
                 for rank in range(3)]
        return [finish(rank) for rank in ranks]

    def test_a_hosts_own_name_is_of_loopback(self):
        self.make_named_hosts()
        for backend in ("tcp", "gloo", "hier:shm+tcp"):
            self.assert_all_well(3, self.ends(PROGRAM, backend, TUTTI_STORE="tcp://h0:29700"))
        self.assert_all_well(3, self.ends(PROGRAM, "tcp", MASTER_ADDR="h0", MASTER_PORT="29500"))
        slurm = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "h[0-1]", **self.token}
        ranks = [self.on(rank, PROGRAM, "tcp", SLURM_PROCID=str(rank), **slurm) for rank in (0, 1)]
        self.assert_all_well(2, [finish(rank) for rank in ranks])

    def test_a_hosts_own_name_is_of_loopback_under_tutti_run(self):
        self.make_named_hosts()
        launches = [self.on(node, TUTTI, "run", "-n", "2", "--nnodes", "2", "--node-rank", str(node), "--rendezvous",
                            "h0:29400", PROGRAM, "tcp", **self.token) for node in (0, 1)]
        self.assert_all_well(4, [finish(launch) for launch in launches])

    def test_a_name_that_is_of_loopback_on_another_host_is_explained(self):
        self.make_named_hosts(["127.0.1.1 h0 h1\n"] * 2)
        why = ("store h0:29400: cannot join within .*: 127.0.1.1: Connection refused; 127.0.1.1 is loopback: this host, not "
               "another one; .* correct 'h0' in /etc/hosts")
        rank = self.on(1, TUTTI, "bench", "--timeout", "500ms", TUTTI_RANK="1", TUTTI_SIZE="2", TUTTI_STORE="tcp://h0:29400",
                       **self.token)
        node = self.on(1, TUTTI, "run", "-n", "1", "--nnodes", "2", "--node-rank", "1", "--rendezvous", "h0:29400",
                       "--join-timeout", "500ms", PROGRAM, **self.token)
        for process, begin in ((rank, ""), (node, "node 1 has not reached node 0 within 0.5 s: ")):
            status, _, errors = finish(process)
            self.assertNotEqual(status, 0)
            self.assertRegex(errors, begin + why)

    def test_ipv6_alone(self):
        self.make_named_hosts(addresses=("fd00:77::1", "fd00:77::2"))
        for host in ("fd00:77::1", "h0"):
            self.assert_all_well(3, self.ends(PROGRAM, "tcp", MASTER_ADDR=host, MASTER_PORT="29500"))

    def test_a_hosts_own_name_is_of_an_interface_that_others_do_not_reach(self):
        self.make_named_hosts(["10.213.79.1 h0\n", "{0} h0\n"])
        self.hosts.connect("aux0", ["10.213.79.1"] * 2)
        self.assert_all_well(3, self.ends(PROGRAM, "tcp", TUTTI_STORE="tcp://h0:29700"))

    def test_ports_of_a_range_pass_a_firewall(self):
        self.make_named_hosts()
        for name in self.hosts.names:   # What else a host sends over TCP ends at a rule for routes.
            for number, rule in enumerate((["sport", "29800-29850"], ["dport", "29800-29850"], ["prohibit"])):
                ip("-n", name, "rule", "add", "pref", str(100 + number), "ipproto", "tcp", *rule)
        store = {"TUTTI_STORE": "tcp://h0:29800"}
        ends = self.ends(TUTTI, "bench", "--backend", "tcp", "--timeout", "500ms", "-s", "8", **store)
        self.assertRegex(ends[0][2], r"has no connection to rank \d.*; let TCP .*\(firewall\), or set TUTTI_PORTS")
        self.assert_all_well(3, self.ends(PROGRAM, "tcp", TUTTI_PORTS="29800-29850", **store))
        launches = [self.on(node, TUTTI, "run", "-n", "2", "--nnodes", "2", "--node-rank", str(node), "--rendezvous",
                            "h0:29801", PROGRAM, "hier:shm+tcp", TUTTI_PORTS="29800-29850", **self.token) for node in (0, 1)]
        self.assert_all_well(4, [finish(launch) for launch in launches])

    def test_pods_of_the_manifest(self):
        page = (pathlib.Path(__file__).parents[3] / "docs" / "clusters.md").read_text()
        manifest = page.split("```yaml")[1].split("```")[0]
        variables = dict(re.findall(r'{name: (TUTTI_\w+), value: "?(.*?)"?}', manifest))
        command = re.search(r"command: \[sh, -c, '(.*)'\]", manifest)[1].replace("/program", f"{PROGRAM} tcp")
        self.assertEqual(variables.pop("TUTTI_TOKEN_FILE"), "/job/token")
        self.make_named_hosts(["{0} tutti-0.tutti\n"] * 2)
        ranks = [self.on(node, "sh", "-c", command, **{**variables, "TUTTI_SIZE": "2"}, HOSTNAME=f"tutti-{node}", **self.token)
                 for node in (0, 1)]
        self.assert_all_well(2, [finish(rank) for rank in ranks])


if __name__ == "__main__":
    TUTTI, PROGRAM, SURVIVING = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
    unittest.main(verbosity=2)
