"""Ranks on two hosts whose link fails: network namespaces, and a link that this script is.

    links_test.py PROGRAM RELAY [--loss-seconds N] [TESTS]

RELAY carries the frames between two TAP devices, and loses, duplicates, reorders and delays them. Each fault must end
the calls of all ranks with an error within dead_after + 1 s, and loss alone must not.
"""
import argparse
import ctypes
import fcntl
import os
import queue
import shutil
import struct
import subprocess
import sys
import threading
import time
import unittest

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP_NO_PI = 0x1002
DEVICES = ["wire0", "wire1"]
DEAD_AFTER = 3
OPTIONS = argparse.Namespace(program="", relay="", loss_seconds=120)
LIBC = ctypes.CDLL(None, use_errno=True)


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def open_tap(namespace, device):
    """The TAP device of a namespace, which has to exist."""
    with open("/proc/self/ns/net") as own, open(f"/run/netns/{namespace}") as other:
        if LIBC.setns(other.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP_NO_PI))
        finally:
            LIBC.setns(own.fileno(), CLONE_NEWNET)
    return tap


class Link:
    """Two namespaces, and the relay that is the network between them."""

    def __init__(self, addresses=("10.213.78.1/24", "10.213.78.2/24")):
        self.names = [f"tutti{os.getpid()}{end}" for end in "ab"]
        self.addresses = [address.split("/")[0] for address in addresses]
        self.taps = []
        self.relay = None
        for name, device, address in zip(self.names, DEVICES, addresses):
            ip("netns", "add", name)
            self.taps.append(open_tap(name, device))
            ip("-n", name, "link", "set", device, "addrgenmode", "none")
            ip("-n", name, "address", "add", address, "dev", device, *(["nodad"] if ":" in address else []))
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
        self.relay = subprocess.Popen([OPTIONS.relay, *map(str, self.taps)], pass_fds=self.taps,
                                      stdin=subprocess.PIPE, text=True)

    def be(self, loss=(0, 0), duplication=0, reordering=0, delay_ms=0, rate_mbit=0, spared_port=0):
        """`loss`: of the frames that leave side 0 and side 1. `rate_mbit`: of each connection and direction."""
        print(*loss, duplication, reordering, delay_ms, rate_mbit, spared_port, file=self.relay.stdin, flush=True)

    def close(self):
        if self.relay:
            self.relay.stdin.close()
            self.relay.wait()
        while self.taps:
            os.close(self.taps.pop())
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


class Process:
    """A program on one side, and its lines with the moments at which they came."""

    def __init__(self, link, side, *arguments):
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", link.names[side], OPTIONS.program, *arguments], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "TUTTI_IFNAME": DEVICES[side]})
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put((time.monotonic(), line.strip()))
        self.lines.put((time.monotonic(), None))

    def line(self, seconds):
        try:
            return self.lines.get(timeout=seconds)
        except queue.Empty:
            return time.monotonic(), f"no line within {seconds} s"

    def end(self):
        self.process.stdin.close()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdin.close()
        self.process.stdout.close()


class Links(unittest.TestCase):
    backend = "gloo"

    def setUp(self):
        if os.geteuid() != 0 or not shutil.which("ip") or not os.path.exists("/dev/net/tun"):
            self.skipTest("needs root, ip (iproute2) and /dev/net/tun")
        self.make_link()

    def make_link(self, *addresses):
        try:
            self.link = Link(*addresses)
        except OSError as error:
            self.skipTest(f"no network namespaces with TAP devices here: {error}")
        self.addCleanup(self.link.close)

    def start(self, store_side, dead_after, verb="rank", sides=(0, 0, 1)):
        """Ranks 0 and 1 on side 0, rank 2 on side 1."""
        address = self.link.addresses[store_side]
        zones = [f"%{device}" if address.startswith("fe80") else "" for device in DEVICES]
        store = self.run_on(store_side, "store", address + zones[store_side])
        self.port = int(store.line(20)[1])
        hosts = [f"[{address}{zone}]" if ":" in address else address for zone in zones]
        ranks = [self.run_on(side, verb, str(rank), str(len(sides)), f"tcp://{hosts[side]}:{self.port}", self.backend,
                             str(dead_after * 1000)) for rank, side in enumerate(sides)]
        for rank in ranks:
            line = rank.line(60)[1]
            if line and "is not built" in line:
                self.skipTest(line)
            self.assertEqual(line, "ready")
        return ranks

    def run_on(self, side, *arguments):
        process = Process(self.link, side, *arguments)
        self.addCleanup(process.kill)
        return process

    def assert_named(self, store_side, fault, named=("2", "2", "[01]"), late=1):
        """Each rank names one of `named`: the rank beyond the link. Or it does not reach the store."""
        ranks = self.start(store_side, DEAD_AFTER)
        time.sleep(0.5)               # In the middle of calls.
        since = time.monotonic()
        fault()
        for number, rank in enumerate(ranks):
            when, line = rank.line(DEAD_AFTER + 10)
            while line and line.startswith("log "):
                when, line = rank.line(DEAD_AFTER + 10)
            text = f"{self.backend}, store on side {store_side}, rank {number}, {when - since:.2f} s: {line}"
            print(text, file=sys.stderr)
            self.assertRegex(line or "", "^error .*(peer_lost|aborted)", text)
            self.assertLess(when - since, DEAD_AFTER + late, text)
            self.assertRegex(line, f"^error {named[number]} |the store has (not answered|ended)", text)

    def lose(self, *directions):
        return lambda: self.link.be(loss=[float(side in directions) for side in (0, 1)])

    def test_a_link_that_carries_nothing(self):
        for side in (0, 1):
            with self.subTest(store=side):
                self.link.be()
                self.assert_named(side, self.lose(0, 1))

    def test_a_link_that_carries_one_direction(self):
        for side in (0, 1):
            for direction in (0, 1):
                with self.subTest(store=side, lost=direction):
                    self.link.be()
                    self.assert_named(side, self.lose(direction))

    def test_a_link_that_is_set_down(self):
        for side in (0, 1):
            with self.subTest(store=side):
                try:
                    self.assert_named(side, lambda: ip("-n", self.link.names[1], "link", "set", DEVICES[1], "down"))
                finally:
                    ip("-n", self.link.names[1], "link", "set", DEVICES[1], "up")

    def test_a_device_that_is_deleted(self):
        """The other side keeps connections that are half open."""
        self.assert_named(0, lambda: ip("-n", self.link.names[1], "link", "delete", DEVICES[1]))

    def test_a_link_that_carries_the_store_alone(self):
        """The beats go on. TCP ends the connections, at its next probe: they are 1 s apart."""
        def fault():
            self.link.be(loss=(1, 1), spared_port=self.port)
        self.assert_named(0, fault, ["[012]"] * 3, late=2)   # All ranks name the end that was found first.

    def test_loss_and_duplication_raise_no_alarm(self):
        ranks = self.start(0, 10)
        self.link.be(loss=(0.05, 0.05), duplication=0.02)
        time.sleep(OPTIONS.loss_seconds)
        self.link.be()
        ranks[0].end()
        for rank in ranks:
            self.assertRegex(rank.line(60)[1] or "", "^ended after [0-9]+ calls$")


class LinksOverTcp(Links):
    backend = "tcp"

    def test_results_are_right_over_a_bad_link(self):
        ranks = self.start(0, 10, "check")
        self.link.be(loss=(0.01, 0.01), duplication=0.01, reordering=0.05)
        for rank in ranks:
            self.assertEqual(rank.line(120)[1], "right")

    def times(self, **network):
        """For 8 B, 1 MiB and 16 MiB: the ms of an all_reduce of two hosts over four connections, and over one."""
        for name, device in zip(self.link.names, DEVICES):
            ip("-n", name, "link", "set", device, "mtu", "60000", "txqueuelen", "20000")
        os.setpriority(os.PRIO_PROCESS, self.link.relay.pid, -15)    # A network waits for no processor.
        self.link.be(**network)
        ranks = self.start(0, 10, "time", (0, 1))
        times = [[float(time) for time in ranks[0].line(120)[1].split()] for _ in range(3)]
        print(f"{network}: {times} ms", file=sys.stderr)
        return times

    def test_a_step_takes_one_delay_and_four_connections_have_four_windows(self):
        small, _, large = self.times(delay_ms=5)
        self.assertLess(max(small), 8)                  # 5.1 on an idle machine; two steps would take 10.
        self.assertLess(large[0], 0.85 * large[1])      # About half on an idle machine.

    def test_four_connections_have_four_times_the_rate(self):
        _, *sizes = self.times(rate_mbit=400)
        for four, one in sizes:
            self.assertLess(four, 0.45 * one)           # About 0.26 on an idle machine.

    def test_ipv6(self):
        for addresses in (("fd00:78::1/64", "fd00:78::2/64"), ("fe80::1/64", "fe80::2/64")):
            with self.subTest(addresses=addresses):
                self.link.close()
                self.make_link(addresses)
                ranks = self.start(0, 10)
                ranks[0].end()
                for rank in ranks:
                    self.assertRegex(rank.line(60)[1] or "", "^ended after [0-9]+ calls$")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("relay")
    parser.add_argument("--loss-seconds", type=float, default=120)
    arguments, rest = parser.parse_known_args(namespace=OPTIONS)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
