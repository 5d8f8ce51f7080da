"""A real object store on loopback for tests: Ceph's radosgw over one monitor and one OSD whose disk is memory.

    @pytest.fixture(scope="module")
    def store(tmp_path_factory):
        yield from radosgw.running(tmp_path_factory.mktemp("radosgw"))

    run a program with store.environment()     # endpoint and keys
    store.kill(); store.start()                # SIGKILL of the gateway; what it holds survives
    store.make_bucket("name")

It checks signatures, digests and conditions as AWS does (not the condition on completing a multipart upload, which it
passes over). Where the Debian packages radosgw, ceph-mon and ceph-osd are missing, the tests are skipped and say so.
"""
import datetime
import hashlib
import hmac
import http.client
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid

import pytest

KEY, SECRET, REGION = "TESTACCESS", "test+Secret/words", "us-east-1"
TOOLS = ("radosgw", "radosgw-admin", "ceph", "ceph-mon", "ceph-osd", "ceph-authtool", "monmaptool")
DEADLINE_S = 120

SETTINGS = """
[global]
fsid = {fsid}
mon host = v1:127.0.0.1:{mon_port}
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind msgr2 = false
auth cluster required = none
auth service required = none
auth client required = none
run dir = {folder}
admin socket = {folder}/$name.sock
pid file = {folder}/$name.pid
log file = {folder}/$name.log
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 1000
mon data avail crit = 0

[mon.a]
mon data = {folder}/mon
mon initial members = a

[osd.0]
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 1073741824
osd op num shards = 1

[client.rgw]
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw thread pool size = 8
rgw enable usage log = false
rgw enable ops log = false
rgw gc max objs = 8
rgw data log num shards = 1
"""


def missing():
    """The tools that are not there."""
    return [tool for tool in TOOLS if not shutil.which(tool)]


def running(folder):
    """A generator for fixtures: the store, up and with its bucket; or a skip."""
    absent = missing()
    if absent:
        pytest.skip(f"no object store to test against: {', '.join(absent)} missing (packages radosgw, ceph-mon, ceph-osd)")
    if os.geteuid():
        pytest.skip("no object store to test against: its daemons are started as root here")
    store = Radosgw(folder)
    try:
        store.build()
        store.make_bucket(store.bucket)
        yield store
    finally:
        store.close()


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Radosgw:
    bucket = "ringfold-test"

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        # Sockets have short paths.
        self.short = pathlib.Path(tempfile.mkdtemp(prefix="rgw-"))
        self.port, self.mon_port = free_ports(2)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.daemons = {}
        self.settings = self.short / "ceph.conf"

    def environment(self, **more):
        return {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, **more}

    def tool(self, *words):
        done = subprocess.run([str(w) for w in words], env={**os.environ, "CEPH_CONF": str(self.settings)}, timeout=DEADLINE_S,
                              stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode:
            raise RuntimeError(f"{words[0]}: {done.stderr.decode(errors='replace')[-2000:]}")
        return done.stdout

    def daemon(self, name, *words):
        with open(self.folder / f"{name}.out", "ab") as output:
            self.daemons[name] = subprocess.Popen([str(w) for w in words], env={**os.environ, "CEPH_CONF": str(self.settings)},
                                                  stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def build(self):
        """A cluster of one monitor and one OSD, and the gateway with one user."""
        fsid, osd = uuid.uuid4(), uuid.uuid4()
        for part in ("mon", "osd", "rgw"):
            (self.short / part).mkdir()
        self.settings.write_text(SETTINGS.format(fsid=fsid, folder=self.short, port=self.port, mon_port=self.mon_port))
        monmap, keyring = self.short / "monmap", self.short / "keyring"
        self.tool("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v1:127.0.0.1:{self.mon_port}]", monmap)
        self.tool("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        self.tool("ceph-mon", "-i", "a", "--mkfs", "--monmap", monmap, "--keyring", keyring)
        self.daemon("mon", "ceph-mon", "-i", "a", "-f", "--setuser", "root", "--setgroup", "root")
        self.tool("ceph", "osd", "new", osd, "0")
        self.tool("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self.daemon("osd", "ceph-osd", "-i", "0", "-f", "--setuser", "root", "--setgroup", "root")
        self.start()
        self.tool("radosgw-admin", "-n", "client.rgw", "user", "create", "--uid=test", "--display-name=test",
                  f"--access-key={KEY}", f"--secret-key={SECRET}")

    def start(self):
        """The gateway, until it answers."""
        self.daemon("rgw", "radosgw", "-n", "client.rgw", "-f")
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/")
                connection.getresponse().read()
                connection.close()
                return
            except OSError:
                died = [name for name, process in self.daemons.items() if process.poll() is not None]
                if died or time.monotonic() > deadline:
                    words = (self.folder / f"{(died or ['rgw'])[0]}.out").read_text(errors="replace")
                    raise RuntimeError(f"the gateway does not answer; ended: {died}; {words[-2000:]}") from None
                time.sleep(0.1)

    def kill(self):
        """SIGKILL of the gateway."""
        self.daemons["rgw"].kill()
        self.daemons["rgw"].wait()

    def make_bucket(self, name):
        status, body = self.request("PUT", f"/{name}")
        if status != 200:
            raise RuntimeError(f"bucket {name}: {status} {body[:500]}")

    def request(self, verb, path, query="", body=b""):
        """One signed request, apart from the code under test: (status, body). `query` in canonical form."""
        now = datetime.datetime.now(datetime.timezone.utc)
        date, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        digest = hashlib.sha256(body).hexdigest()
        host = f"127.0.0.1:{self.port}"
        signed = "host;x-amz-content-sha256;x-amz-date"
        canonical = f"{verb}\n{path}\n{query}\nhost:{host}\nx-amz-content-sha256:{digest}\nx-amz-date:{date}\n\n{signed}\n{digest}"
        scope = f"{day}/{REGION}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = b"AWS4" + SECRET.encode()
        for step in (day, REGION, "s3", "aws4_request", text):
            key = hmac.new(key, step.encode(), hashlib.sha256).digest()
        authorization = f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={signed}, Signature={key.hex()}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(verb, path + (f"?{query}" if query else ""), body,
                           {"Authorization": authorization, "x-amz-date": date, "x-amz-content-sha256": digest})
        answer = connection.getresponse()
        result = answer.status, answer.read()
        connection.close()
        return result

    def uploads(self, bucket=None):
        """How many unfinished uploads there are."""
        status, body = self.request("GET", f"/{bucket or self.bucket}", "uploads=")
        assert status == 200, body
        return body.count(b"<Upload>")

    def close(self):
        for process in reversed(list(self.daemons.values())):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.short, ignore_errors=True)
