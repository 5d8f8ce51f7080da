"""What a user's mistakes look like on the whole screen: one report, and an exit status that says so."""
import os
import re
import socket
import subprocess

import pytest

from helpers import DEADLINE_S, KEY, RINGFOLD, Server, WORKER, environment, reports


def screen(folder, *words, **variables):
    done = subprocess.run([RINGFOLD, *map(str, words)], cwd=folder, env=environment(**variables), timeout=DEADLINE_S,
                          capture_output=True, text=True)
    assert done.returncode > 0, done.stdout + done.stderr
    assert reports(done.stdout + done.stderr) <= 1, done.stdout + done.stderr
    return done.returncode, done.stdout + done.stderr


def one_report(folder, *words, **variables):
    status, text = screen(folder, *words, **variables)
    assert reports(text) == 1, text
    return status, text


@pytest.mark.parametrize("n, show", ((1, "all"), (1, "none"), (3, "all"), (3, "none"), (3, "1")))
def test_a_report_of_a_worker_is_not_repeated(tmp_path, n, show):
    status, text = one_report(tmp_path, "run", "-n", n, "--show", show, "--", RINGFOLD, "train", "mlp", "--data", "nowhere")
    assert status == 1 and "error[RF0402]" in text and "'nowhere'" in text
    assert re.search(r"worker (\d), exit status 1", text) and re.search(r"logs/g1/00\d.out", text), text


@pytest.mark.parametrize("transport", ("shm", "tcp"))
def test_a_wrong_key_of_all_workers(tmp_path, transport):
    with Server(tmp_path) as store:
        (tmp_path / "other.key").write_bytes(KEY[::-1])
        status, text = screen(tmp_path, "run", "-n", 3, "--store", store.uri, "--key-file", "other.key", "--transport",
                              transport, "--", RINGFOLD, "train", "mlp", "--data", "/usr/share/datasets/fashion-mnist")
        assert status == 1 and reports(text) == 1 and "error[RF0203]" in text, text


def test_a_store_that_is_not_there(tmp_path):
    (tmp_path / "job.key").write_bytes(KEY)
    with socket.socket() as taken:  # bound, but it does not listen
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        status, text = one_report(tmp_path, "run", "-n", 2, "--store", f"tcp://{where}", "--key-file", "job.key",
                                  "--start-timeout", "1s", "--", RINGFOLD, "train", "mlp", "--data", "nowhere")
    assert status == 1 and where in text, text


def test_a_key_file_that_is_not_there(tmp_path):
    status, text = one_report(tmp_path, "run", "-n", 2, "--key-file", "no.key", "--", WORKER, "once", 1, "private")
    assert status in (1, 74) and "no.key" in text


def test_a_port_in_use(tmp_path):
    with Server(tmp_path) as store:
        status, text = one_report(tmp_path, "store", "--bind", store.uri.removeprefix("tcp://"), "--key-file", "job.key")
        assert status == 1 and "error[RF0201]" in text and store.uri.rsplit(":", 1)[1] in text


def test_a_journal_that_is_a_folder(tmp_path):
    (tmp_path / "job.key").write_bytes(KEY)
    os.mkdir(tmp_path / "journal")
    status, text = one_report(tmp_path, "store", "--journal", "journal", "--key-file", "job.key")
    assert status == 1 and "error[RF0206]" in text and "'journal'" in text
