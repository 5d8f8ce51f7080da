"""Hosts of network namespaces on one switch, every link of a given rate in both directions. Needs root and iproute2."""
import json
import os
import subprocess

from common import processes


class Hosts:
    """with Hosts(4, "1gbit") as hosts: … hosts.inside(0) goes before a command to run it on the first."""

    def __init__(self, count, rate):
        self.count, self.rate = count, rate
        self.switch = f"rfb{os.getpid()}switch"
        self.names = [f"rfb{os.getpid()}host{host}" for host in range(count)]

    def address(self, host):
        return f"10.78.0.{host + 1}"

    def inside(self, host):
        return ["ip", "netns", "exec", self.names[host]]

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in [*self.names, self.switch]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def _make(self):
        self._must("ip", "netns", "add", self.switch)
        self._must("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        self._must("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            port = f"port{host}"
            self._must("ip", "netns", "add", name)
            self._must("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self.switch)
            self._must("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
            self._must("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self._must("ip", "-n", name, "link", "set", device, "up")
            self._limit(name, "eth0")  # what the host sends
            self._limit(self.switch, port)  # and what it receives

    def _limit(self, namespace, device):
        # What the bucket lets through at once flatters short calls; a smaller one loses rate where the cores are busy.
        self._must("ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", self.rate,
                   "burst", "256k", "latency", "50ms")

    def _must(self, *words):
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except OSError as problem:
            raise processes.Failed(f"{self.count} hosts: '{words[0]}' cannot be run: {problem.strerror}; install iproute2") \
                from problem
        if done.returncode:
            raise processes.Failed(f"{self.count} hosts: '{' '.join(words)}' said: {done.stderr.strip()}; hosts need root and "
                                  "iproute2: run as root, or name the sections to measure without hosts, two and wire")

    def sent_bytes(self, host):
        """What the host's interface has sent to others since it was made."""
        done = subprocess.run([*self.inside(host), "cat", "/sys/class/net/eth0/statistics/tx_bytes"], check=True,
                              capture_output=True, text=True)
        return int(done.stdout)

    def link_bytes_per_second(self):
        """Payload that one TCP connection carries from the first host to the second, by iperf3."""
        server = subprocess.Popen([*self.inside(1), "iperf3", "--server", "--one-off", "--forceflush"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            for line in server.stdout:
                if "listening" in line:
                    break
            done = subprocess.run([*self.inside(0), "iperf3", "--client", self.address(1), "--time", "3", "--omit", "1",
                                   "--json"], capture_output=True, text=True, timeout=60, check=False)
            if done.returncode:
                raise processes.Failed(f"the rate of a link: iperf3 said: {(done.stdout + done.stderr).strip()[-200:]}")
            return json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"] / 8
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
