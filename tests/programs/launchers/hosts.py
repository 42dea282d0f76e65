"""Hosts for tests: two network namespaces that a virtual cable connects."""
import os
import shutil
import subprocess
import tempfile
import unittest

ADDRESSES = ("10.213.77.1", "10.213.77.2")


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise unittest.SkipTest(f"not possible here: ip {' '.join(arguments)}: {done.stderr.strip()}")


class Hosts:
    """`etc_hosts`: the texts of /etc/hosts, with which the hosts have the names h0 and h1. `test` removes the hosts."""

    def __init__(self, test, addresses=ADDRESSES, etc_hosts=()):
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
            test.skipTest("needs root, ip (iproute2) and unshare")
        self.names = [f"tutti{os.getpid()}{end}" for end in "ab"]
        self.files = []
        for text in etc_hosts:
            file = tempfile.NamedTemporaryFile("w")
            test.addCleanup(file.close)
            file.write("127.0.0.1 localhost\n" + text)
            file.flush()
            self.files.append(file.name)
        for name in self.names:
            test.addCleanup(subprocess.run, ["ip", "netns", "delete", name], capture_output=True)
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        self.connect("wire0", addresses)

    def connect(self, device, addresses):
        ip("link", "add", device, "netns", self.names[0], "type", "veth", "peer", "name", device, "netns", self.names[1])
        for name, address in zip(self.names, addresses):
            prefix, *nodad = ("64", "nodad") if ":" in address else ("24",)
            ip("-n", name, "address", "add", f"{address}/{prefix}", "dev", device, *nodad)
            ip("-n", name, "link", "set", device, "up")

    def command(self, node, *command):
        """The command on a host."""
        inside = ["ip", "netns", "exec", self.names[node]]
        if self.files:
            script = 'hostname "h$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
            inside += ["unshare", "--uts", "--mount", "sh", "-c", script, str(node), self.files[node]]
        return [*inside, *command]
