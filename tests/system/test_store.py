"""ringfold store: the command as a process, killed, restarted and started where it cannot run."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess

import pytest

RINGFOLD = str(pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve() / "bin" / "ringfold")
DEADLINE_S = 60
KEY = bytes(range(32))


def environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("RINGFOLD_")}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job.key").write_bytes(KEY)
    (tmp_path / "other.key").write_bytes(KEY[::-1])
    return tmp_path


def store(folder, *words, **more):
    more.setdefault("env", environment())
    return subprocess.run([RINGFOLD, "store", *map(str, words)], cwd=folder, timeout=DEADLINE_S,
                          capture_output=True, **more)


class Server:
    """A server that says where it listens; killed at the end of the test if it still runs."""

    def __init__(self, folder, *words, bind="127.0.0.1:0", journal="journal"):
        where = ["--journal", journal] if journal else []
        self.folder = folder
        self.process = subprocess.Popen(
            [RINGFOLD, "store", "--bind", bind, *where, "--key-file", "job.key", *words],
            cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.line = self.process.stdout.readline().decode()
        found = re.search(r'tcp://[^\s",]+:(\d+)', self.line)
        if not found:
            raise AssertionError(self.process.communicate(timeout=DEADLINE_S))
        self.port = int(found.group(1))
        self.uri = found.group(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=DEADLINE_S)

    def end(self, number):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out.decode(), err.decode()

    def ask(self, *words, key="job.key", **more):
        return store(self.folder, *words, "--store", self.uri, "--key-file", key, **more)


def test_put_get_list_delete(folder):
    with Server(folder) as server:
        assert server.line.startswith("store at tcp://127.0.0.1:")
        assert server.ask("put", "jobs/a", "one").returncode == 0
        assert server.ask("put", "jobs/b", input=b"\x00\xfftwo").returncode == 0
        assert server.ask("put", "other", "").returncode == 0
        assert server.ask("get", "jobs/a").stdout == b"one"
        assert server.ask("get", "jobs/b").stdout == b"\x00\xfftwo"
        lines = [json.loads(x) for x in server.ask("list", "jobs/", "--json").stdout.splitlines()]
        assert lines == [{"key": "jobs/a", "revision": 1, "value": "one"},
                         {"key": "jobs/b", "revision": 2, "value_hex": "00ff74776f"}]
        assert server.ask("list").stdout.count(b"\n") == 3
        assert server.ask("delete", "jobs/a").returncode == 0
        gone = server.ask("get", "jobs/a")
        assert gone.returncode == 1 and gone.stdout == b""
        assert b"error[RF0402]: get 'jobs/a' at the store " + server.uri.encode() in gone.stderr
        assert server.ask("delete", "jobs/a").returncode == 1
        too_large = server.ask("put", "large", input=b"x" * ((1 << 20) + 1))
        assert too_large.returncode == 1 and b"RF0103" in too_large.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ends_cleanly_on_a_signal(folder, number):
    with Server(folder) as server:
        assert server.ask("put", "k", "v").returncode == 0
        assert server.end(number) == (0, "", "")


def test_json_says_where_it_listens(folder):
    with Server(folder, "--json") as server:
        said = json.loads(server.line)
        assert said == {"event": "listening", "store": server.uri, "port": server.port,
                        "journal": "journal", "pid": server.process.pid}


def test_killed_and_restarted_it_has_everything(folder):
    port = 0
    for round_ in range(5):
        with Server(folder, bind=f"127.0.0.1:{port}") as server:
            port = server.port
            listed = server.ask("list", "--json").stdout.splitlines()
            assert [json.loads(x)["value"] for x in listed] == [str(i) for i in range(round_)]
            assert server.ask("put", f"k{round_}", str(round_)).returncode == 0
            assert server.end(signal.SIGKILL)[0] == -signal.SIGKILL


def test_a_client_waits_for_a_restart(folder):
    with Server(folder) as first:
        uri, port = first.uri, first.port
        assert first.ask("put", "k", "v").returncode == 0
        first.end(signal.SIGKILL)
    client = subprocess.Popen([RINGFOLD, "store", "get", "k", "--store", uri, "--key-file", "job.key",
                               "--timeout", str(DEADLINE_S)], cwd=folder, env=environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with Server(folder, bind=f"127.0.0.1:{port}"):
        out, err = client.communicate(timeout=DEADLINE_S)
        assert (client.returncode, out, err) == (0, b"v", b"")


def test_a_crowd_of_clients_outlives_kills(folder):
    """8 clients put in parallel while the server is killed and started: every put happens, once."""
    with Server(folder) as first:
        uri, port = first.uri, first.port
        first.end(signal.SIGKILL)
    clients = [subprocess.Popen([RINGFOLD, "store", "put", f"crowd/{i}", str(i), "--store", uri, "--key-file",
                                 "job.key", "--timeout", str(DEADLINE_S)], cwd=folder, env=environment(),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for i in range(8)]
    try:
        while any(client.poll() is None for client in clients):
            with Server(folder, bind=f"127.0.0.1:{port}") as server:
                waiting = [client for client in clients if client.poll() is None]
                if waiting:
                    waiting[0].wait(timeout=DEADLINE_S)
                server.end(signal.SIGKILL)
        for client in clients:
            out, err = client.communicate(timeout=DEADLINE_S)
            assert (client.returncode, out, err) == (0, b"", b"")
    finally:
        for client in clients:
            if client.poll() is None:
                client.kill()
            client.communicate()
    with Server(folder, bind=f"127.0.0.1:{port}") as server:
        items = [json.loads(x) for x in server.ask("list", "--json").stdout.splitlines()]
        assert {x["key"]: x["value"] for x in items} == {f"crowd/{i}": str(i) for i in range(8)}
        assert sorted(x["revision"] for x in items) == list(range(1, 9))


def test_a_torn_tail_is_cut_off_and_told(folder):
    with Server(folder) as server:
        server.ask("put", "a", "1")
        server.ask("put", "b", "2")
        server.end(signal.SIGKILL)
    journal = folder / "journal"
    journal.write_bytes(journal.read_bytes()[:-1])
    with Server(folder) as server:
        assert server.ask("get", "a").stdout == b"1"
        assert server.ask("get", "b").returncode == 1
        _, _, err = server.end(signal.SIGTERM)
        assert err.startswith("! journal 'journal' ended in the middle of a record: ")


def test_a_damaged_journal_is_refused_with_its_offset(folder):
    with Server(folder) as server:
        for name in "abc":
            server.ask("put", name, "value")
        server.end(signal.SIGKILL)
    journal = folder / "journal"
    content = bytearray(journal.read_bytes())
    content[60] ^= 1
    journal.write_bytes(content)
    refused = store(folder, "--journal", "journal", "--key-file", "job.key")
    assert refused.returncode == 1
    assert re.match(rb"error\[RF0206\]: journal 'journal' is damaged at offset 24 of \d+\n", refused.stderr)
    assert journal.read_bytes() == content


def test_a_busy_port_names_its_holder(folder):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        refused = store(folder, "--bind", f"127.0.0.1:{port}", "--key-file", "job.key")
    assert refused.returncode == 1 and refused.stdout == b""
    text = refused.stderr.decode()
    assert f"error[RF0201]: cannot listen on 127.0.0.1:{port}: Address already in use\n" in text
    assert f"where  127.0.0.1:{port}\n" in text
    assert f"pid {os.getpid()} (" in text


def test_a_journal_that_cannot_be_written_is_named(folder):
    refused = store(folder, "--journal", "/proc/no/journal", "--key-file", "job.key")
    assert refused.returncode == 1
    assert b"error[RF0206]: journal '/proc/no/journal' cannot be opened" in refused.stderr


def test_two_servers_do_not_share_a_journal(folder):
    with Server(folder):
        refused = store(folder, "--journal", "journal", "--key-file", "job.key")
        assert refused.returncode == 1
        assert b"error[RF0206]: journal 'journal' is in use by another store" in refused.stderr


def test_a_full_disk_ends_it_with_the_path(folder):
    limited = subprocess.Popen(
        ["/bin/bash", "-c", 'ulimit -S -f 1; exec "$0" "$@"', RINGFOLD, "store", "--journal", "journal",
         "--key-file", "job.key"], cwd=folder, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE)
    try:
        uri = re.search(r"tcp://\S+:\d+", limited.stdout.readline().decode()).group(0)
        refused = store(folder, "put", "k", "--store", uri, "--key-file", "job.key", "--timeout", "0.5",
                        input=b"x" * 4096)
        assert refused.returncode == 1 and b"RF0205" in refused.stderr
        _, err = limited.communicate(timeout=DEADLINE_S)
    finally:
        if limited.poll() is None:
            limited.kill()
            limited.communicate()
    assert limited.returncode == 1
    assert b"error[RF0206]: journal 'journal' cannot be written at offset 24: File too large" in err


def test_another_key_is_refused_at_once(folder):
    with Server(folder, journal=None) as server:
        refused = server.ask("get", "k", "--timeout", str(10 * DEADLINE_S), key="other.key")
        assert refused.returncode == 1
        assert b"error[RF0203]: " in refused.stderr and b"the job key differs" in refused.stderr


def test_nobody_there_is_told_with_address_and_cause(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        uri = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        refused = store(folder, "get", "k", "--store", uri, "--key-file", "job.key", "--timeout", "0.2")
    assert refused.returncode == 1
    text = refused.stderr.decode()
    assert text.startswith(f"error[RF0205]: the store {uri}: no answer within 200 ms: cannot connect to ")
    assert "Connection refused" in text


@pytest.mark.parametrize("words, said", [
    (["fetch", "k"], "'fetch' is none of"),
    (["get"], "get needs a key"),
    (["get", "a", "b"], "one word too many"),
    (["serve", "--timeout", "soon"], "not a number of seconds"),
    (["serve"], "key is missing"),
    (["get", "k", "--key-file", "job.key"], "--store tcp://HOST:PORT is missing"),
    (["--key-file", "job.key", "--bind", "nowhere"], "not an address"),
    (["get", "k", "--key-file", "job.key", "--store", "http://x:1"], "http://x:1"),
    (["--key-file", "no.key"], "no.key"),
])
def test_wrong_usage_is_told(folder, words, said):
    refused = store(folder, *words)
    assert refused.returncode != 0 and refused.stdout == b""
    assert said in refused.stderr.decode()


def test_settings_come_from_the_environment(folder):
    with Server(folder, journal=None) as server:
        env = {**environment(), "RINGFOLD_STORE": server.uri, "RINGFOLD_KEY_FILE": "job.key"}
        assert store(folder, "put", "k", "v", env=env).returncode == 0
        assert store(folder, "get", "k", env=env).stdout == b"v"
