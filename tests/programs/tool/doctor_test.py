"""Runs `tutti doctor` on machines and ranks with injected faults: doctor_test.py PATH_OF_TUTTI [unittest
arguments]."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import unittest

from driver import ENVIRONMENT, TUTTI, Program, main, tutti



def shell(script, **variables):
    """Runs a script of bash, in which $T is the program."""
    return subprocess.run(["bash", "-c", script], env={**ENVIRONMENT, "T": TUTTI, **variables}, text=True, capture_output=True,
                          timeout=120)


class Doctor(Program):
    def finds(self, done, *lines, code=3):
        """The run ended with `code`, and its output has lines that match, each with what to do below it."""
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        for line in lines:
            self.assertRegex(done.stdout, rf"(?m)^(\[0\] )?{line}.*\n(\[0\] )? +-> .+$")

    def has_no_problem(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotRegex(done.stdout, r"(?m)^(\[0\] )?problem ")

    def ranks(self, size, script, *options):
        """The doctor on ranks of which each runs `script` first."""
        return shell(f'"$T" run -n {size} bash -c \'{script}; exec "$T" doctor --timeout 3s {" ".join(options)}\'')

    def test_a_machine_without_a_fault(self):
        done = tutti("doctor")
        self.has_no_problem(done)
        for area in ("version", "variables", "limits", "cpu", "memory", "network", "backends", "launcher",
                     "group"):
            self.assertRegex(done.stdout, rf"(?m)^(ok|warning) +{area} ")
        self.assertNotRegex(done.stdout, r"(?m)^ok +backends +\w+: .*(cannot|not built|sees no)")
        self.assertRegex(done.stdout, r"(?m)^ok +group +two threads reduced an array over local")
        self.assertRegex(done.stdout, r"\n1 process: 0 problems, \d+ warnings?\n$")

    def test_json(self):
        done = tutti("doctor", "-f", "json", TUTTI_CHEK="1")
        report = json.loads(done.stdout)
        self.assertEqual((done.returncode, report["problems"], report["ranks"]), (0, 0, 1))
        stray = [check for check in report["checks"] if check["area"] == "variables"]
        self.assertEqual([(check["level"], check["ranks"]) for check in stray], [("warning", None)])
        self.assertIn("did you mean TUTTI_CHECK?", stray[0]["text"])

    def test_limits(self):
        self.finds(shell('ulimit -n 40; exec "$T" doctor'), "problem  limits +40 open files; 2 ranks need about 72")

    def test_a_misspelled_variable(self):
        self.finds(tutti("doctor", TUTTI_CHEK="1"), r"warning  variables +.*TUTTI_CHEK; did you mean TUTTI_CHECK\?", code=0)

    def test_a_value_that_no_group_takes(self):
        self.finds(tutti("doctor", TUTTI_LOG="verbose"), "problem  group +two threads cannot use local.*TUTTI_LOG is 'verbose'")

    def test_half_of_a_launchers_variables(self):
        self.finds(tutti("doctor", TUTTI_RANK="1"), "problem  launcher +TUTTI_RANK is set, but TUTTI_SIZE is not")

    def test_a_store_that_nobody_serves(self):
        done = tutti("doctor", "--timeout", "1s", TUTTI_RANK="1", TUTTI_SIZE="2", TUTTI_STORE="tcp://127.0.0.1:1",
                     TUTTI_STORE_HOSTED="1")
        self.finds(done, "problem  store +rank 1 of 2: .*127.0.0.1:1.*Connection refused")

    def test_a_rank_0_that_is_lost(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            variables = {**ENVIRONMENT, "TUTTI_SIZE": "2", "TUTTI_STORE": f"tcp://127.0.0.1:{probe.getsockname()[1]}"}
        rank_0 = subprocess.Popen(["timeout", "-s", "KILL", "2", TUTTI, "bench"], env={**variables, "TUTTI_RANK": "0"},
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        done = tutti("doctor", **{**variables, "TUTTI_RANK": "1"})
        rank_0.wait(timeout=60)
        self.finds(done, "problem  store +rank 1 of 2: ")
        self.assertRegex(done.stdout, "(?m)^ok +version ")   # What it knows of its machine.

    def test_a_parent_that_ignores_its_children(self):
        done = subprocess.run([TUTTI, "doctor"], env=ENVIRONMENT, text=True, capture_output=True, timeout=120,
                              preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.has_no_problem(done)

    def test_an_absent_interface_and_host(self):
        self.finds(tutti("doctor", TUTTI_IFNAME="=nope0"), "problem  network +tcp: .*no interface matches '=nope0'")
        self.finds(tutti("doctor", MASTER_ADDR="nowhere.invalid"), "problem  network +MASTER_ADDR is nowhere.invalid")

    def test_an_absent_token(self):
        self.finds(tutti("doctor", TUTTI_TOKEN_FILE="/nowhere"), "problem  token +")

    def test_a_small_dev_shm(self):
        script = 'unshare -m true || exit 77; exec unshare -m bash -c "mount -t tmpfs -o size=64k none /dev/shm && {} \\$T doctor"'
        done = shell(script.format(""))
        if done.returncode == 77:
            self.skipTest("no mount namespaces here")
        self.finds(done, "warning  memory +/dev/shm, of 64 KiB, has no room", code=0)
        # Neither it nor a memory file is possible.
        self.finds(shell(script.format("ulimit -f 1024;")), "problem  memory +a memory file .*File too large; /dev/shm, of 64 KiB")

    def test_ranks_without_a_fault(self):
        done = self.ranks(2, "true")
        self.has_no_problem(done)
        self.assertRegex(done.stdout, r"(?m)^\[0\] ok +group +all_reduce of 2 ranks over ")

    def test_a_rank_with_another_variable(self):
        done = self.ranks(3, "[ $TUTTI_RANK = 1 ] && export TUTTI_CHECK=1")
        self.finds(done, r"problem  ranks +TUTTI_CHECK is '1' on rank 1 \(.*\), and not set on ranks 0,2 ")
        report = json.loads(re.sub(r"(?m)^\[0\] ", "", self.ranks(3, "[ $TUTTI_RANK = 1 ] && export TUTTI_CHECK=1", "-f", "json").stdout))
        self.assertEqual([check["ranks"] for check in report["checks"] if check["area"] == "ranks"], ["1"])

    def test_a_misspelled_variable_hides_no_difference(self):
        self.finds(self.ranks(2, "export TUTTI_CHEKK=1 TUTTI_CHECK=1; [ $TUTTI_RANK = 1 ] && export TUTTI_CHECK=0"),
                   "problem  ranks +TUTTI_CHECK is '")

    def test_a_rank_with_other_limits(self):
        self.finds(self.ranks(3, "[ $TUTTI_RANK = 2 ] && ulimit -n 1500"),
                   r"warning  ranks +the limit of open files is '1500' on rank 2 ", code=0)

    def test_a_rank_that_does_not_come(self):
        self.finds(self.ranks(3, "[ $TUTTI_RANK = 2 ] && exec sleep 5"), "problem  ranks +no report of rank 2 within 3 s")

    def test_ranks_on_one_cpu(self):
        self.finds(shell('exec taskset -c 0 "$T" run -n 2 "$T" doctor'), "warning  cpu +ranks 0-1: 2 ranks share 1 CPU of", code=0)

    def test_a_firewall_between_two_hosts(self):
        names = [f"tuttidoc{os.getpid()}{end}" for end in "ab"]
        if not shutil.which("ip"):
            self.skipTest("ip is not installed")
        commands = [["netns", "add", name] for name in names]
        commands.append(["link", "add", "wire0", "netns", names[0], "type", "veth", "peer", "name", "wire0", "netns", names[1]])
        for number, name in enumerate(names):
            self.addCleanup(subprocess.run, ["ip", "netns", "delete", name], capture_output=True)
            commands += [["-n", name, "address", "add", f"10.213.79.{number + 1}/24", "dev", "wire0"],
                         ["-n", name, "link", "set", "wire0", "up"], ["-n", name, "link", "set", "lo", "up"]]
        # Only the store's port is open.
        commands.append(["-n", names[1], "rule", "add", "pref", "1", "to", "10.213.79.1", "ipproto", "tcp", "dport", "29401-65534",
                         "prohibit"])
        for command in commands:
            done = subprocess.run(["ip", *command], capture_output=True, text=True)
            if done.returncode:
                self.skipTest(f"no network namespaces here: ip {' '.join(command)}: {done.stderr.strip()}")
        variables = {"TUTTI_SIZE": "2", "TUTTI_STORE": "tcp://10.213.79.1:29400", "TUTTI_STORE_OPEN": "1"}
        ranks = [subprocess.Popen(["ip", "netns", "exec", name, TUTTI, "doctor", "--timeout", "3s"], text=True,
                                  env={**ENVIRONMENT, **variables, "TUTTI_RANK": str(rank)}, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) for rank, name in enumerate(names)]
        output, errors = ranks[0].communicate(timeout=60)
        ranks[1].communicate(timeout=60)
        self.assertEqual([rank.returncode for rank in ranks], [3, 3], errors)
        self.assertRegex(output, r"(?m)^problem  group +rank [01]: .*[cC]onnect")


if __name__ == "__main__":
    main()
