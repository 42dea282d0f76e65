"""Ranks on two hosts whose link fails: network namespaces, and a link that this script is.

    links_test.py PROGRAM [--loss-seconds N] [TESTS]

The script carries the frames between two TAP devices, so it can lose and duplicate them in either direction. Each
fault must end the calls of all ranks with an error within dead_after + 1 s, and loss alone must not.
"""
import argparse
import ctypes
import fcntl
import os
import queue
import random
import select
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
DEVICE = "wire0"
DEAD_AFTER = 3
OPTIONS = argparse.Namespace(program="", loss_seconds=120)
LIBC = ctypes.CDLL(None, use_errno=True)


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def open_tap(namespace):
    """The TAP device of a namespace, which has to exist."""
    with open("/proc/self/ns/net") as own, open(f"/run/netns/{namespace}") as other:
        if LIBC.setns(other.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TAP_NO_PI))
        finally:
            LIBC.setns(own.fileno(), CLONE_NEWNET)
    return tap


class Link:
    """Two namespaces, and the thread that carries the frames between them."""

    def __init__(self):
        self.names = [f"tutti{os.getpid()}{end}" for end in "ab"]
        self.taps = []
        self.loss = [0.0, 0.0]        # Of the frames that leave side 0 and side 1.
        self.duplication = 0.0
        self.spared_port = None       # Frames to and from this TCP port are not lost.
        self.ends = False
        for number, name in enumerate(self.names):
            ip("netns", "add", name)
            self.taps.append(open_tap(name))
            ip("-n", name, "address", "add", f"{self.address(number)}/24", "dev", DEVICE)
            ip("-n", name, "link", "set", DEVICE, "up")
            ip("-n", name, "link", "set", "lo", "up")
        self.thread = threading.Thread(target=self.carry)
        self.thread.start()

    @staticmethod
    def address(side):
        return f"10.213.78.{side + 1}"

    def carry(self):
        dice = random.Random(1)
        while not self.ends:
            for tap in select.select(self.taps, [], [], 0.05)[0]:
                side = self.taps.index(tap)
                try:
                    frame = os.read(tap, 65536)
                    if dice.random() < self.loss[side] and not self.is_spared(frame):
                        continue
                    for _ in range(2 if dice.random() < self.duplication else 1):
                        os.write(self.taps[1 - side], frame)
                except OSError:       # The device is down or gone, or its queue is full.
                    time.sleep(0.001)

    def is_spared(self, frame):
        """Ethernet, IPv4 without options, TCP; or no IPv4: address resolution."""
        is_tcp = frame[12:14] == b"\x08\x00" and frame[23] == 6
        return self.spared_port and (not is_tcp or self.spared_port in struct.unpack("!HH", frame[34:38]))

    def close(self):
        self.ends = True
        if hasattr(self, "thread"):
            self.thread.join()
        for tap in self.taps:
            os.close(tap)
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


class Process:
    """A program on one side, and its lines with the moments at which they came."""

    def __init__(self, link, side, *arguments):
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", link.names[side], OPTIONS.program, *arguments], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "TUTTI_IFNAME": DEVICE})
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
        self.process.stdout.close()


class Links(unittest.TestCase):
    backend = "gloo"

    def setUp(self):
        if os.geteuid() != 0 or not shutil.which("ip") or not os.path.exists("/dev/net/tun"):
            self.skipTest("needs root, ip (iproute2) and /dev/net/tun")
        try:
            self.link = Link()
        except OSError as error:
            self.skipTest(f"no network namespaces with TAP devices here: {error}")
        self.addCleanup(self.link.close)

    def start(self, store_side, dead_after):
        """Ranks 0 and 1 on side 0, rank 2 on side 1."""
        address = self.link.address(store_side)
        store = self.run_on(store_side, "store", address)
        self.port = int(store.line(20)[1])
        url = f"tcp://{address}:{self.port}"
        ranks = [self.run_on(side, "rank", str(rank), "3", url, self.backend, str(dead_after * 1000))
                 for rank, side in enumerate((0, 0, 1))]
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
        def fault():
            for side in directions:
                self.link.loss[side] = 1.0
        return fault

    def test_a_link_that_carries_nothing(self):
        for side in (0, 1):
            with self.subTest(store=side):
                self.link.loss = [0.0, 0.0]
                self.assert_named(side, self.lose(0, 1))

    def test_a_link_that_carries_one_direction(self):
        for side in (0, 1):
            for direction in (0, 1):
                with self.subTest(store=side, lost=direction):
                    self.link.loss = [0.0, 0.0]
                    self.assert_named(side, self.lose(direction))

    def test_a_link_that_is_set_down(self):
        for side in (0, 1):
            with self.subTest(store=side):
                try:
                    self.assert_named(side, lambda: ip("-n", self.link.names[1], "link", "set", DEVICE, "down"))
                finally:
                    ip("-n", self.link.names[1], "link", "set", DEVICE, "up")

    def test_a_device_that_is_deleted(self):
        """The other side keeps connections that are half open."""
        self.assert_named(0, lambda: ip("-n", self.link.names[1], "link", "delete", DEVICE))

    def test_a_link_that_carries_the_store_alone(self):
        """The beats go on. TCP ends the connections, at its next probe: they are 1 s apart."""
        def fault():
            self.link.spared_port = self.port
            self.link.loss = [1.0, 1.0]
        self.assert_named(0, fault, ["[012]"] * 3, late=2)   # All ranks name the end that was found first.

    def test_loss_and_duplication_raise_no_alarm(self):
        ranks = self.start(0, 10)
        self.link.loss = [0.05, 0.05]
        self.link.duplication = 0.02
        time.sleep(OPTIONS.loss_seconds)
        self.link.loss = [0.0, 0.0]
        ranks[0].end()
        for rank in ranks:
            self.assertRegex(rank.line(60)[1] or "", "^ended after [0-9]+ calls$")


class LinksOverTcp(Links):
    backend = "tcp"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--loss-seconds", type=float, default=120)
    arguments, rest = parser.parse_known_args(namespace=OPTIONS)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
