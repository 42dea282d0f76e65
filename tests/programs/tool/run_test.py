"""Runs `tutti run` with command lines of a user: run_test.py PATH_OF_TUTTI [unittest arguments]."""
import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from driver import ENVIRONMENT, TUTTI, main

# Limit for a busy machine; the limits of the tool are shorter.
SOON = 10


def command(ranks, *arguments):
    return [TUTTI, "run", "-n", str(ranks), *map(str, arguments)]


def run(ranks, *arguments, **options):
    """Runs it to its end. Output is bytes unless text=True."""
    return subprocess.run(command(ranks, *arguments), env=ENVIRONMENT, capture_output=True, timeout=60, **options)


def shell(ranks, script, **options):
    return run(ranks, "sh", "-c", script, text=True, **options)


def processes_with(word):
    """Processes with this word among their arguments, zombies excluded."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if word.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def arguments_of(pid):
    """The command line; b"" after the end."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def parent_of(pid):
    """The parent; 0 after the end."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def ranks_with(word):
    """Ranks without the launcher's own processes, and without copies of a shell between fork and exec."""
    found = []
    for pid in processes_with(word):
        arguments, parent = arguments_of(pid), parent_of(pid)
        if parent != 0 and arguments and not arguments.startswith(TUTTI.encode()) and arguments != arguments_of(parent):
            found.append(pid)
    return found


def descriptors(pid):
    """The open descriptors of a process, in words; those that it closes meanwhile are left out."""
    names = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return names


def eventually(condition, seconds=SOON):
    """Waits until the condition holds; returns its last value."""
    until = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return value


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Run(unittest.TestCase):
    def setUp(self):
        # An argument that no other process has, to find this one.
        self.word = f"{self.id().rsplit('.', 1)[1]}-{os.getpid()}"
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def start(self, *arguments, **options):
        """Starts it. On exit, waits for its end and checks that no process with self.word remains."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        process = subprocess.Popen([TUTTI, "run", *map(str, arguments)], env=ENVIRONMENT, **options)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe and not pipe.closed:
                pipe.close()
        process.wait(SOON)
        for pid in processes_with(self.word):
            os.kill(pid, signal.SIGKILL)

    def assert_nothing_left(self):
        self.assertEqual(processes_with(self.word), [])


class Variables(Run):
    def test_every_rank_gets_what_torchrun_sets_and_our_own(self):
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
                 "TUTTI_RANK", "TUTTI_SIZE", "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE", "TUTTI_NODE", "TUTTI_STORE",
                 "TUTTI_STORE_HOSTED")
        done = shell(3, "echo " + " ".join(f"{name}=${name}" for name in names))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = sorted(done.stdout.splitlines())
        self.assertEqual(len(lines), 3)
        ports = set()
        for rank, line in enumerate(lines):
            self.assertTrue(line.startswith(f"[{rank}] "), line)
            told = dict(word.split("=", 1) for word in line.split()[1:])
            for name in ("RANK", "LOCAL_RANK", "TUTTI_RANK", "TUTTI_LOCAL_RANK"):
                self.assertEqual(told[name], str(rank), name)
            for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "TUTTI_SIZE", "TUTTI_LOCAL_SIZE"):
                self.assertEqual(told[name], "3", name)
            self.assertEqual((told["GROUP_RANK"], told["TUTTI_NODE"], told["MASTER_ADDR"]), ("0", "0", "127.0.0.1"))
            self.assertEqual(told["TUTTI_STORE_HOSTED"], "1")
            ports.add((told["MASTER_PORT"], told["TUTTI_STORE"]))
        (master, store), = ports
        self.assertRegex(store, r"^tcp://127\.0\.0\.1:\d+$")
        self.assertNotEqual(store.rsplit(":", 1)[1], master)

    def test_the_store_listens_while_ranks_run_and_master_port_is_free(self):
        connect = ("import os, socket\n"
                   "host, port = os.environ['TUTTI_STORE'][6:].split(':')\n"
                   "socket.create_connection((host, int(port)), 5).close()\n"
                   "socket.socket().bind((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))\n")
        done = run(1, sys.executable, "-c", connect)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_a_torchrun_around_it_is_not_seen_below(self):
        environment = {**ENVIRONMENT, "RANK": "7", "WORLD_SIZE": "9", "TORCHELASTIC_RUN_ID": "x"}
        done = subprocess.run(command(1, "sh", "-c", "echo $RANK $WORLD_SIZE ${TORCHELASTIC_RUN_ID-none}"),
                              env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stdout, "[0] 0 1 none\n")

    def test_arguments_reach_the_program_as_they_are(self):
        done = run(1, "--", "printf", "%s|", "-n", "a b", "--help", "$HOME", "", text=True)
        self.assertEqual(done.stdout, "[0] -n|a b|--help|$HOME||\n")

    def test_a_program_gets_the_descriptors_and_limits_of_the_launcher(self):
        script = "ls -l /proc/self/fd | grep -c 'pipe:\\|socket:\\|anon_inode:'; ulimit -n"
        done = shell(2, script)
        limit = subprocess.run(["sh", "-c", "ulimit -n"], capture_output=True, text=True).stdout
        # stdout, stderr and the pipe between ls and grep.
        self.assertEqual(sorted(done.stdout.split()), sorted(2 * ["[0]", "[1]"] + 2 * ["2", limit.strip()]))


class Output(Run):
    def test_lines_are_prefixed_each_on_its_own_stream(self):
        done = shell(2, "echo to stdout; echo to stderr >&2; echo; printf 'no newline'")
        self.assertEqual(sorted(done.stdout.split("\n")),
                         ["", "[0] ", "[0] no newline", "[0] to stdout", "[1] ", "[1] no newline", "[1] to stdout"])
        self.assertEqual(sorted(done.stderr.splitlines()), ["[0] to stderr", "[1] to stderr"])

    def test_lines_of_many_ranks_stay_whole(self):
        # Written in pieces, to stdout and stderr, which are one pipe here.
        script = ("import os\n"
                  "rank = os.environ['RANK']\n"
                  "for i in range(300):\n"
                  "    line = (rank * 40 + '\\n').encode()\n"
                  "    os.write(1, line[:17]); os.write(1, line[17:])\n"
                  "    os.write(2, (rank.upper() + '!' * 30 + '\\n').encode())\n")
        done = subprocess.run(command(4, sys.executable, "-c", script), env=ENVIRONMENT, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 4 * 600)
        for line in lines:
            self.assertRegex(line, r"^\[(\d)\] (\1{40}|\1!{30})$")

    def test_any_bytes_pass(self):
        data = bytes(range(256)).replace(b"\n", b"") + b"\n"
        with open(pathlib.Path(self.folder.name, "data"), "wb") as file:
            file.write(data * 50)
        done = run(1, "cat", file.name)
        self.assertEqual(done.stdout, (b"[0] " + data) * 50)

    def test_a_line_without_end_is_cut_and_nothing_is_lost(self):
        done = shell(2, "head -c 1000000 /dev/zero | tr '\\0' x")
        bytes_of = {"0": 0, "1": 0}
        for line in done.stdout.splitlines():
            self.assertLessEqual(len(line), 4 + 65536)
            bytes_of[line[1]] += len(line) - 4
        self.assertEqual(bytes_of, {"0": 1000000, "1": 1000000})

    def test_much_output_arrives_whole(self):
        done = shell(2, "seq 200000")
        for rank in range(2):
            numbers = [line[4:] for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
            self.assertEqual(numbers, [str(i) for i in range(1, 200001)])

    def test_lines_of_a_rank_that_a_signal_ends_are_there(self):
        # Nothing is flushed. Rank 1 kills itself, the launcher ends rank 0.
        script = ("import os, pathlib, signal, sys, time\n"
                  "print('before', sys.stdout.isatty(), os.environ['TERM'])\n"
                  "there = pathlib.Path(sys.argv[1])\n"
                  "if os.environ['RANK'] == '0': there.touch(); time.sleep(60)\n"
                  "while not there.exists(): time.sleep(0.01)\n"
                  "os.kill(os.getpid(), signal.SIGKILL)\n")
        done = run(2, sys.executable, "-c", script, f"{self.folder.name}/there", text=True)
        self.assertEqual((done.returncode, sorted(done.stdout.splitlines())),
                         (137, ["[0] before True dumb", "[1] before True dumb"]), done.stderr)

    def test_what_is_piped_in_is_for_rank_0(self):
        done = run(3, "cat", input=b"one\ntwo\n")
        self.assertEqual((done.returncode, done.stdout), (0, b"[0] one\n[0] two\n"))

    def test_when_the_reader_goes_the_ranks_learn_it(self):
        process = self.start("-n", 2, "sh", "-c", f"yes {self.word}", stderr=subprocess.DEVNULL)
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(SOON), 128 + signal.SIGPIPE)
        self.assert_nothing_left()

    def test_a_reader_that_sleeps_does_not_keep_a_failure_waiting(self):
        ready = pathlib.Path(self.folder.name, "go")
        script = f"if [ $RANK = 1 ]; then until [ -e {ready} ]; do sleep 0.01; done; exit 9; fi; yes {self.word}"
        process = self.start("-n", 2, "sh", "-c", script)
        self.assertTrue(eventually(lambda: processes_with(self.word)))
        ready.touch()
        # No byte has been read yet.
        self.assertTrue(eventually(lambda: not processes_with(self.word)))
        _, errors = process.communicate(timeout=SOON)
        self.assertEqual(process.returncode, 9)
        self.assertIn("rank 1", errors)


class Failures(Run):
    def test_a_killed_rank_ends_the_others_within_a_second_and_is_named(self):
        script = (f"echo $$ > {self.folder.name}/$RANK.new; mv {self.folder.name}/$RANK.new {self.folder.name}/$RANK; "
                  f"sh -c 'sleep 1000; :' {self.word}; :")
        process = self.start("-n", 3, "sh", "-c", script)
        places = [pathlib.Path(self.folder.name, str(rank)) for rank in range(3)]
        self.assertTrue(eventually(lambda: all(place.exists() for place in places)
                                   and len(processes_with(self.word)) == 3))
        victim = int(places[1].read_text())
        started = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        _, errors = process.communicate(timeout=SOON)
        took = time.monotonic() - started
        self.assertEqual(process.returncode, 137)
        self.assertEqual(errors, f"error: rank 1 (pid {victim}) was ended by signal 9 (Killed); ended ranks 0,2\n")
        self.assertLess(took, 1)
        self.assert_nothing_left()

    def test_with_keep_going_the_others_outlive_a_killed_rank(self):
        script = f"[ $RANK = 1 ] && kill -KILL $$; until [ -e {self.folder.name}/go ]; do sleep 0.01; done; echo went on"
        process = self.start("--keep-going", "-n", 3, "sh", "-c", script)
        pid = re.match(r"rank 1 \(pid (\d+)\) was ended by signal 9 \(Killed\); the other ranks go on\n",
                       process.stderr.readline())
        self.assertTrue(pid)
        pathlib.Path(self.folder.name, "go").touch()
        output, errors = process.communicate(timeout=SOON)
        self.assertEqual((process.returncode, errors), (0, ""))
        self.assertEqual(sorted(output.splitlines()), ["[0] went on", "[2] went on"])

    def test_with_keep_going_a_status_and_the_last_signal_still_fail(self):
        for script, status in (("[ $RANK = 1 ] && kill -KILL $$; [ $RANK = 2 ] && exit 42; exec sleep 1000", 42),
                               ("kill -KILL $$", 137)):
            process = self.start("--keep-going", "-n", 3, "sh", "-c", script)
            _, errors = process.communicate(timeout=SOON)
            self.assertEqual(process.returncode, status, errors)

    def test_a_status_is_passed_on_with_the_rank_that_had_it(self):
        done = shell(3, "[ $RANK = 2 ] && exit 42; exec sleep 1000")
        self.assertEqual(done.returncode, 42)
        self.assertRegex(done.stderr, r"^error: rank 2 \(pid \d+\) ended with status 42; ended ranks 0-1\n$")

    def test_who_ignores_sigterm_is_killed_grandchildren_too(self):
        stubborn = f"trap \"\" TERM; while :; do sleep 0.05; done # {self.word}"
        script = (f"[ $RANK = 0 ] && {{ until [ -e {self.folder.name}/1 ]; do sleep 0.01; done; exit 3; }}; "
                  f"sh -c '{stubborn}' {self.word} & setsid sh -c '{stubborn}' {self.word} & "
                  f"trap '' TERM; touch {self.folder.name}/$RANK; wait")
        started = time.monotonic()
        done = shell(2, script)
        self.assertEqual(done.returncode, 3)
        self.assertLess(time.monotonic() - started, 3)
        self.assert_nothing_left()

    def test_what_ranks_leave_behind_ends_with_the_launch(self):
        done = shell(2, f"sh -c 'sleep 1000; :' {self.word} & setsid sh -c 'sleep 1000; :' {self.word} & exit 0")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assert_nothing_left()

    def test_what_ranks_leave_behind_may_still_finish_its_output(self):
        done = shell(2, "(sleep 0.1; echo late) & exit 0")
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] late", "[1] late"])

    def test_the_others_may_end_in_their_own_way(self):
        script = (f"trap 'echo bye; exit 0' TERM; touch {self.folder.name}/$RANK; "
                  f"if [ $RANK = 1 ]; then until [ -e {self.folder.name}/0 ]; do sleep 0.01; done; exit 5; fi; "
                  "while :; do sleep 0.01; done")
        done = shell(2, script)
        self.assertEqual((done.returncode, done.stdout), (5, "[0] bye\n"))

    def test_a_stopped_rank_is_ended_too(self):
        script = (f"if [ $RANK = 0 ]; then touch {self.folder.name}/0; kill -STOP $$; fi; "
                  f"until [ -e {self.folder.name}/0 ]; do sleep 0.01; done; exit 4")
        self.assertEqual(shell(2, script).returncode, 4)

    def test_a_rank_that_is_stopped_is_named(self):
        process = self.start("-n", "2", "sh", "-c", "[ $RANK = 0 ] || kill -STOP $$; exit 0")
        line = process.stderr.readline()
        pid = re.fullmatch(r"rank 1 \(pid (\d+)\) is stopped by signal 19 \(.*\); kill -CONT (\d+) continues it\n", line)
        self.assertTrue(pid, line)
        self.assertEqual(pid[1], pid[2])
        os.kill(int(pid[1]), signal.SIGCONT)
        self.assertEqual(process.wait(SOON), 0)

    def test_it_leaves_no_process_to_the_first_one(self):
        script = ("import ctypes, os, subprocess, sys; ctypes.CDLL(None).prctl(36, 1);"   # PR_SET_CHILD_SUBREAPER
                  "subprocess.run([sys.argv[1], 'run', '-n', '1', 'true'], check=True);"
                  "left = 0\n"
                  "try: left = os.waitpid(-1, 0)[0]\n"
                  "except ChildProcessError: pass\n"
                  "sys.exit(f'process {left} was left' if left else 0)")
        done = subprocess.run([sys.executable, "-c", script, TUTTI], env=ENVIRONMENT, text=True, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_library_that_is_not_found_has_a_hint(self):
        for name, hinted in (("libtutti.so.0.1", True), ("libother.so.1", False)):
            done = shell(1, f"echo './a: error while loading shared libraries: {name}: cannot open' >&2; exit 127")
            hint = re.search(r"^hint: set LD_LIBRARY_PATH=(.*), or after meson install run ldconfig", done.stderr, re.M)
            self.assertEqual((done.returncode, bool(hint)), (127, hinted), done.stderr)
            if hinted:
                self.assertTrue(list(pathlib.Path(hint[1]).glob("libtutti*")), hint[1])

    def test_a_program_that_cannot_run_is_named(self):
        plain = pathlib.Path(self.folder.name, "plain")
        plain.write_text("text")
        orphan = pathlib.Path(self.folder.name, "orphan")
        orphan.write_text("#!/no/such/interpreter\n")
        orphan.chmod(0o755)
        for program, status, words in (("no-such-program", 127, ["'no-such-program'", "PATH"]),
                                       ("./no-such-program", 127, ["No such file"]),
                                       (plain, 126, [str(plain), "Permission denied"]),
                                       (self.folder.name, 126, ["Permission denied"]),
                                       (orphan, 127, [str(orphan), "interpreter"])):
            with self.subTest(program=program):
                done = run(2, program, text=True)
                self.assertEqual((done.returncode, done.stdout), (status, ""))
                self.assertRegex(done.stderr, r"^error: cannot run [^\n]*\n$")
                for word in words:
                    self.assertIn(word, done.stderr)


class Signals(Run):
    def listening(self, ranks, body, *options):
        """A launch whose ranks have installed their traps."""
        script = body + f"\ntouch {self.folder.name}/$RANK; while :; do sleep 0.01; done # {self.word}"
        process = self.start("-n", ranks, *options, "sh", "-c", script, self.word)
        self.assertTrue(eventually(lambda: all(pathlib.Path(self.folder.name, str(rank)).exists()
                                               for rank in range(ranks))))
        return process

    def test_signals_reach_every_rank(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            with self.subTest(signal=number.name):
                for file in pathlib.Path(self.folder.name).iterdir():
                    file.unlink()
                process = self.listening(2, f"trap 'echo got it; exit 0' {number.name[3:]}")
                process.send_signal(number)
                output, _ = process.communicate(timeout=SOON)  # The shells print the end of their `sleep`.
                self.assertEqual(process.returncode, 0)
                self.assertEqual(sorted(output.splitlines()), ["[0] got it", "[1] got it"])

    def test_ranks_that_a_signal_ends_give_its_status(self):
        process = self.listening(2, ":")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SOON)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertRegex(errors, r"^error: rank \d \(pid \d+\) was ended by signal 15 \(Terminated\)")
        self.assert_nothing_left()

    def test_after_a_signal_a_slow_rank_may_finish(self):
        # Rank 0 exits at once with a status; rank 1 takes longer than the grace time after a failure.
        process = self.listening(2, "trap '[ $RANK = 0 ] && exit 130; sleep 0.8; echo saved; exit 0' INT")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=SOON)
        self.assertEqual((process.returncode, output), (130, "[1] saved\n"))

    def test_a_signal_that_comes_again_ends_who_ignores_it(self):
        process = self.listening(2, "trap '' INT TERM")
        process.send_signal(signal.SIGINT)
        started = time.monotonic()

        def ended():
            process.send_signal(signal.SIGINT)
            return process.poll() is not None

        self.assertTrue(eventually(ended))
        self.assertGreater(time.monotonic() - started, 0.19)  # Two at once count once.
        self.assert_nothing_left()

    def test_a_signal_that_comes_again_reaches_the_ranks_and_is_no_success(self):
        process = self.listening(2, "trap 'n=$((n + 1)); [ $n = 1 ] || { echo saved; exit 0; }' INT")
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.8)  # Two at once count once.
        output, errors = process.communicate(timeout=SOON)
        self.assertEqual(process.returncode, 130, errors)
        self.assertEqual(sorted(output.splitlines()), ["[0] saved", "[1] saved"])

    def test_stopping_it_stops_the_ranks_until_it_goes_on(self):
        def states(pids):
            return {pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] for pid in pids}

        process = self.listening(2, "trap 'exit 0' USR1")
        all_of_it = [process.pid, *ranks_with(self.word)]
        self.assertEqual(len(all_of_it), 3)
        process.send_signal(signal.SIGTSTP)
        # State D is a shell that waits for its child's exec (vfork); the child is the stopped process.
        self.assertTrue(eventually(lambda: states([process.pid]) == {"T"} and states(all_of_it) <= {"T", "D"}))
        process.send_signal(signal.SIGCONT)
        self.assertTrue(eventually(lambda: "T" not in states(all_of_it)))
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.wait(SOON), 0)

    def test_when_the_launcher_is_killed_the_ranks_and_what_they_started_end(self):
        # A rank is often a script that runs the program.
        below = f"trap \"\" TERM HUP; touch {self.folder.name}/below$RANK; while :; do sleep 0.01; done"
        process = self.listening(3, f"trap '' TERM HUP; sh -c '{below}' {self.word} &")
        self.assertTrue(eventually(lambda: all(pathlib.Path(self.folder.name, f"below{rank}").exists()
                                               for rank in range(3))))
        # A shell that starts `sleep` is there twice for a moment.
        self.assertGreaterEqual(len(ranks_with(self.word)), 6)
        process.kill()
        process.wait(SOON)
        self.assertTrue(eventually(lambda: not processes_with(self.word)))


class Nodes(Run):
    def nodes(self, port, count, *arguments, ranks=(2, 2), rendezvous=None):
        return [self.start("-n", ranks[node], "--nnodes", count, "--node-rank", node, "--rendezvous",
                           rendezvous or f"127.0.0.1:{port}", *arguments) for node in range(len(ranks))]

    def outputs(self, launches):
        return [(*launch.communicate(timeout=30), launch.returncode) for launch in launches]

    def test_ranks_are_numbered_over_the_nodes(self):
        port = free_port()
        script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $TUTTI_STORE $MASTER_ADDR:$MASTER_PORT"
        results = self.outputs(self.nodes(port, 2, "sh", "-c", script, ranks=(1, 2)))
        self.assertEqual([(errors, status) for _, errors, status in results], 2 * [("", 0)])
        lines = [sorted(output.splitlines()) for output, _, _ in results]
        master = lines[0][0].rsplit(" ", 1)[1]
        place = f"tcp://127.0.0.1:{port} {master}"
        self.assertEqual(lines[0], [f"[0] 0/3 0/1 0 {place}"])
        self.assertEqual(lines[1], [f"[1] 1/3 0/2 1 {place}", f"[2] 2/3 1/2 1 {place}"])

    def test_they_meet_over_ipv6(self):
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
                port = probe.getsockname()[1]
        except OSError:
            self.skipTest("no IPv6 here")
        results = self.outputs(self.nodes(port, 2, "sh", "-c", "echo $TUTTI_STORE $MASTER_ADDR",
                                          ranks=(1, 1), rendezvous=f"[::1]:{port}"))
        self.assertEqual([result[0] for result in results],
                         [f"[{rank}] tcp://[::1]:{port} ::1\n" for rank in range(2)], results)

    def test_a_failure_on_one_node_ends_the_others(self):
        for failing in (0, 3):
            with self.subTest(rank=failing):
                script = (f"touch {self.folder.name}/$RANK; "
                          f"if [ $RANK = {failing} ]; then until [ -e {self.folder.name}/0 -a -e {self.folder.name}/1 "
                          f"-a -e {self.folder.name}/2 ]; do sleep 0.01; done; exit 17; fi; exec sleep 1000")
                launches = self.nodes(free_port(), 2, "sh", "-c", script)
                results = self.outputs(launches)
                for _, errors, status in results:
                    self.assertEqual(status, 17, results)
                    self.assertIn(f"rank {failing} on node {failing // 2} ", errors)
                    self.assertIn("ended with status 17", errors)

    def test_a_node_that_ends_first_waits_for_the_others(self):
        script = (f"if [ $GROUP_RANK = 0 ]; then touch {self.folder.name}/0; exit 0; fi; "
                  f"until [ -e {self.folder.name}/0 ]; do sleep 0.01; done; sleep 0.3; exit 6")
        results = self.outputs(self.nodes(free_port(), 2, "sh", "-c", script, ranks=(1, 1)))
        self.assertEqual([status for _, _, status in results], [6, 6], results)

    def test_when_node_0_is_killed_the_others_end(self):
        script = f"touch {self.folder.name}/$RANK; exec sleep 1000"
        launches = self.nodes(free_port(), 2, "sh", "-c", script, ranks=(1, 1))
        self.assertTrue(eventually(lambda: all(pathlib.Path(self.folder.name, str(rank)).exists() for rank in (0, 1))))
        launches[0].kill()
        _, errors = launches[1].communicate(timeout=SOON)
        self.assertEqual(launches[1].returncode, 69, errors)
        self.assertIn("127.0.0.1", errors)

    def test_two_nodes_of_one_number_are_refused_on_all(self):
        place = ["--nnodes", 3, "--rendezvous", f"127.0.0.1:{free_port()}"]
        launches = [self.start("-n", 1, *place, "--node-rank", node, "true") for node in (0, 1, 1)]
        for _, errors, status in self.outputs(launches):
            self.assertEqual(status, 64, errors)
            self.assertIn("two nodes have --node-rank 1: ", errors)

    def test_nodes_that_disagree_about_their_number_are_refused_on_all(self):
        place = ["--rendezvous", f"127.0.0.1:{free_port()}"]
        launches = [self.start("-n", 1, *place, "--nnodes", 2 + node, "--node-rank", node, "true") for node in (0, 1)]
        for _, errors, status in self.outputs(launches):
            self.assertEqual(status, 64, errors)
            self.assertIn("--nnodes 2", errors)
            self.assertIn("--nnodes 3", errors)

    def test_a_launcher_too_many_does_not_disturb_those_that_run(self):
        place = ["-n", 1, "--nnodes", 2, "--rendezvous", f"127.0.0.1:{free_port()}"]
        script = f"touch {self.folder.name}/$RANK; until [ -e {self.folder.name}/go ]; do sleep 0.01; done"
        launches = [self.start(*place, "--node-rank", node, "sh", "-c", script) for node in (0, 1)]
        self.assertTrue(eventually(lambda: all(pathlib.Path(self.folder.name, str(rank)).exists() for rank in (0, 1))))
        (_, errors, status), = self.outputs([self.start(*place, "--node-rank", 1, "true")])
        self.assertEqual(status, 64, errors)
        pathlib.Path(self.folder.name, "go").touch()
        self.assertEqual(self.outputs(launches), 2 * [("", "", 0)])

    def test_a_node_that_does_not_come_is_named(self):
        port = free_port()
        first = self.start("-n", 1, "--nnodes", 2, "--node-rank", 0, "--rendezvous", f"127.0.0.1:{port}",
                           "--join-timeout", "300ms", "true")
        second = self.start("-n", 1, "--nnodes", 2, "--node-rank", 1, "--rendezvous", f"127.0.0.1:{free_port()}",
                            "--join-timeout", "300ms", "true")
        (_, missing, status), (_, unreachable, other) = self.outputs([first, second])
        self.assertEqual((status, other), (69, 69))
        self.assertRegex(missing, r"node 1 of 2 did not connect to tcp://\S+ within 0.3 s; start it, or let TCP")
        self.assertIn("127.0.0.1", unreachable)

    def test_a_port_that_is_taken_is_named(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            launch = self.start("-n", 1, "--nnodes", 2, "--node-rank", 0, "--rendezvous", f"127.0.0.1:{port}", "true")
            _, errors = launch.communicate(timeout=SOON)
        self.assertEqual(launch.returncode, 69)
        self.assertIn(f"127.0.0.1:{port}", errors)

    def test_a_launch_that_waits_for_nodes_can_be_interrupted(self):
        launch = self.start("-n", 1, "--nnodes", 2, "--node-rank", 0, "--rendezvous", f"127.0.0.1:{free_port()}",
                            "true", self.word)
        # It handles signals before it opens its first descriptor that is not a pipe.
        self.assertTrue(eventually(lambda: any("signalfd" in name for name in descriptors(launch.pid))))
        launch.send_signal(signal.SIGINT)
        self.assertEqual(launch.wait(SOON), 130)


class Refusals(Run):
    def test_it_says_what_is_wrong(self):
        for arguments, words in (
                ([], ["-n N"]),
                (["true"], ["-n N"]),
                (["-n"], ["--ranks"]),
                (["-n", "2"], ["PROGRAM"]),
                (["-n", "2", "--"], ["PROGRAM"]),
                (["-n", "0", "true"], ["'0'"]),
                (["-n", "two", "true"], ["'two'"]),
                (["-n", "5000", "true"], ["'5000'"]),
                (["-n", "2", "--frobnicate", "x", "true"], ["--frobnicate"]),
                (["-n", "2", "--nnodes", "2", "true"], ["--nnodes 2", "--node-rank"]),
                (["-n", "2", "--nnodes", "2", "--node-rank", "0", "true"], ["--rendezvous HOST:PORT"]),
                (["-n", "2", "--nnodes", "2", "--node-rank", "2", "true"], ["--node-rank", "'2'"]),
                (["-n", "2", "--rendezvous", "a:1", "true"], ["--nnodes"]),
                *[(["-n", "2", "--nnodes", "2", "--node-rank", "0", "--rendezvous", text, "true"], ["--rendezvous"])
                  for text in ("host", ":1", "host:", "host:0", "host:65536", "::1:70", "tcp://host:7")]):
            with self.subTest(arguments=arguments):
                done = subprocess.run([TUTTI, "run", *arguments], env=ENVIRONMENT, capture_output=True, text=True,
                                      timeout=60)
                self.assertEqual((done.returncode, done.stdout), (64, ""))
                self.assertRegex(done.stderr, r"^error: [^\n]*\n$")
                for word in words:
                    self.assertIn(word, done.stderr)

    def test_help(self):
        done = subprocess.run([TUTTI, "run", "--help"], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0)
        for option in ("--ranks", "--nnodes", "--node-rank", "--rendezvous", "PROGRAM"):
            self.assertIn(option, done.stdout)


if __name__ == "__main__":
    main()
