"""Test hosts: network namespaces on one bridge, whose ways to each other can be cut one by one.

A way is cut by giving the sender a wrong hardware address for the receiver: what it sends is lost without a word, as
behind a dead switch, and the other direction still works."""
import os
import subprocess

import pytest


def ip(*words, check=True):
    return subprocess.run(["ip", *map(str, words)], check=check, capture_output=True, text=True)


class Hosts:
    NOBODY = "02:00:00:00:00:99"

    def __init__(self, count):
        self.count = count
        self.tag = f"rf{os.getpid()}"
        self.names = [f"{self.tag}h{i}" for i in range(count)]
        self.switch = f"{self.tag}sw"

    def address(self, host):
        return f"10.77.0.{host + 1}"

    def __enter__(self):
        made = ip("netns", "add", self.switch, check=False)
        if made.returncode:
            pytest.skip(f"several hosts: 'ip netns add' is not permitted here: {made.stderr.strip()}")
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{host}", "netns", self.switch)
            ip("-n", self.switch, "link", "set", f"port{host}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
        return self

    def __exit__(self, *_):
        for name in [*self.names, self.switch]:
            ip("netns", "del", name, check=False)

    def on(self, host):
        """What goes before a command to run it there."""
        return ["ip", "netns", "exec", self.names[host]]

    def cut_way(self, sender, receiver):
        ip("-n", self.names[sender], "neigh", "replace", self.address(receiver), "lladdr", self.NOBODY, "dev", "eth0",
           "nud", "permanent")

    def split(self, *sides):
        for side in sides:
            for other in sides:
                for a in side:
                    for b in other:
                        if side is not other:
                            self.cut_way(a, b)

    def heal(self):
        for name in self.names:
            ip("-n", name, "neigh", "flush", "nud", "permanent", "dev", "eth0", check=False)
            for host in range(self.count):
                ip("-n", name, "neigh", "del", self.address(host), "dev", "eth0", check=False)
