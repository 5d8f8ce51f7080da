"""Jobs that keep their checkpoints in object storage: a real server that is killed and comes back, wrong keys, a missing bucket, and
servers that answer as few do. Training never stops for any of it."""
import json
import subprocess

import pytest

import fake_s3
import radosgw
from fake_s3 import FakeS3
from helpers import DEADLINE_S, RINGFOLD, Server, environment, wait_for
from trainees import Trainees

DATA = "/usr/share/datasets/fashion-mnist"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    yield from radosgw.running(tmp_path_factory.mktemp("radosgw"))


@pytest.fixture
def store(tmp_path):
    with Server(tmp_path) as started:
        yield started


def running(tmp_path, store, storage, size=2, prefix="job", every=10, **variables):
    trainees = Trainees(tmp_path, store.uri, size, 1, TRAINEE_CHECKPOINT=f"s3://{storage.bucket}/{prefix}", TRAINEE_EVERY=str(every),
                        HOME="/nonexistent", **storage.environment(), **variables)
    return trainees, [trainees.start(worker) for worker in range(size)]


def told(trainees, workers, what):
    return [line for w in workers for line in trainees.lines(w, "out") if line["event"] == "checkpoint" and line["what"] == what]


def more_told(trainees, workers, what):
    before = len(told(trainees, workers, what))
    wait_for(lambda: len(told(trainees, workers, what)) > before, f"'{what}' is told once more")


def train(folder, storage, *more, workers=2, steps=60, ends=0, **variables):
    log = folder / f"log-{len(list(folder.glob('log-*')))}"
    done = subprocess.run(list(map(str, [RINGFOLD, "run", "-n", workers, "-q", "--run-dir", log.with_suffix(".run"), "--", RINGFOLD, "train",
                                         "mlp", "--data", DATA, "--batch", 96, "--shards", 12, "--steps", steps, "--log", log, *more])),
                          cwd=folder, env=environment(HOME="/nonexistent", **{**storage.environment(), **variables}), timeout=2 * DEADLINE_S,
                          capture_output=True, text=True)
    assert done.returncode == ends, (done.stdout, done.stderr)
    return done.stdout + done.stderr if ends else [json.loads(line) for line in log.read_text().splitlines()]


def test_a_job_is_resumed_from_a_real_server(tmp_path, gateway):
    uri = f"s3://{gateway.bucket}/resumed"
    straight = train(tmp_path, gateway)
    train(tmp_path, gateway, "--checkpoint", uri, "--every", 20)
    listed = subprocess.run([RINGFOLD, "ckpt", "list", uri, "--json"], env=environment(HOME="/nonexistent", **gateway.environment()),
                            timeout=DEADLINE_S, capture_output=True, text=True)
    assert listed.returncode == 0 and '"step": 60' in listed.stdout.replace('":60', '": 60'), (listed.stdout, listed.stderr)
    again = train(tmp_path, gateway, "--checkpoint", uri, "--resume", "auto")
    assert again[-1]["digest"] == straight[-1]["digest"]
    # on three workers, from there into another prefix
    moved = train(tmp_path, gateway, "--checkpoint", f"s3://{gateway.bucket}/moved", "--resume", uri, workers=3)
    assert moved[-1]["digest"] == straight[-1]["digest"]


def test_wrong_keys_and_a_missing_bucket_end_the_start(tmp_path, gateway):
    said = train(tmp_path, gateway, "--checkpoint", f"s3://{gateway.bucket}/x", ends=74, AWS_SECRET_ACCESS_KEY="not/it")
    assert "AWS_SECRET_ACCESS_KEY" in said and "not/it" not in said
    said = train(tmp_path, gateway, "--checkpoint", "s3://no-such-bucket/x", ends=74)
    assert "no-such-bucket" in said


def test_the_server_is_killed_and_comes_back(tmp_path, gateway, store):
    trainees, workers = running(tmp_path, store, gateway, prefix="killed")
    with trainees:
        more_told(trainees, workers, "saved")
        gateway.kill()
        trainees.wait_for_steps(workers, more=40, size=2)
        gateway.start()
        more_told(trainees, workers, "saved")
        trainees.stop(workers)
        trainees.check_history()
        for worker in workers:
            worker.wait(timeout=DEADLINE_S)
        again = Trainees(tmp_path, store.uri, 2, 1, **{**trainees.variables, "RINGFOLD_JOB": "again", "TRAINEE_RESUME": "auto"})
        again.started = {0: 10, 1: 10}
        with again:
            started = [again.start(worker, RINGFOLD_RESTARTS="0") for worker in range(2)]
            wait_for(lambda: told(again, started, "returned"), "the last one is loaded")
            assert told(again, started, "returned")[0]["step"] == max(c["step"] for c in trainees.commits(workers[0]))
            again.wait_for_steps(started, size=2)
            again.stop(started)


class Fake:
    """A scripted server, as `running` wants it."""

    def __init__(self, **how):
        self.server, self.bucket = FakeS3(**how), fake_s3.BUCKET

    def environment(self):
        return self.server.environment()

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *what):
        self.server.__exit__(*what)


@pytest.mark.parametrize("conditional", ((501, "NotImplemented"), "ignored", "yes"))
def test_servers_that_know_conditions_or_do_not(tmp_path, store, conditional):
    with Fake(conditional=conditional) as fake:
        trainees, workers = running(tmp_path, store, fake)
        with trainees:
            for _ in range(3):
                more_told(trainees, workers, "saved")
            assert not told(trainees, workers, "failed")
            trainees.stop(workers)
            trainees.check_history()


@pytest.mark.parametrize("fault", ("500", "slow down", "stall", "cut"))
def test_a_server_in_trouble_does_not_stop_training(tmp_path, store, fault):
    faults = {"500": fake_s3.status(500, "InternalError"), "slow down": fake_s3.status(503, "SlowDown"), "stall": fake_s3.stalled,
              "cut": fake_s3.lost}
    with Fake() as fake:
        trainees, workers = running(tmp_path, store, fake)
        with trainees:
            more_told(trainees, workers, "saved")
            for name in ("part-0-of-2.safetensors", "part-1-of-2.safetensors", "manifest.json"):
                fake.server.fail("PUT", name, faults[fault], times=2)
            trainees.wait_for_steps(workers, more=60, size=2)
            more_told(trainees, workers, "saved")
            trainees.stop(workers)
            trainees.check_history()
