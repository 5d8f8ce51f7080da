"""Jobs that keep checkpoints: what is restored is what was there, whoever dies, whatever the storage does; and groups go back."""
import json
import random
import signal
import subprocess
import time

import pytest

from helpers import DEADLINE_S, RINGFOLD, Server, environment, safetensors, wait_for
from trainees import TRAINEE, Trainees, flip_until, order

DATA = "/usr/share/datasets/fashion-mnist"


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path) as started:
        yield started


def running(tmp_path, server, size, step_ms=20, folder=None, uri=None, steps=1000000, every=10, **variables):
    trainees = Trainees(folder or tmp_path, server.uri, size, 1, steps=steps, step_ms=step_ms, RINGFOLD_FAULTS="1",
                        TRAINEE_CHECKPOINT=str(uri or tmp_path / "ck"), TRAINEE_EVERY=str(every), **variables)
    return trainees, [trainees.start(worker) for worker in range(size)]


def told(trainees, process, what):
    return [line for line in trainees.lines(process, "out") if line["event"] == "checkpoint" and line["what"] == what]


def wait_for_told(trainees, workers, what, least=1, who=any):
    return wait_for(lambda: who(len(told(trainees, w, what)) >= least for w in workers), f"'{what}' is told {least} times")


def no_wrong(trainees):
    for process in trainees.all:
        wrong = [line for line in trainees.lines(process, "out") if line["event"] in ("wrong", "error")]
        assert not wrong, (process.name, wrong)


def whole(folder):
    """Steps with a manifest, ascending."""
    return sorted(int(path.parent.name.split("-")[1]) for path in folder.glob("step-*/manifest.json"))


# --- the trainer: resume ---------------------------------------------------------------------------------------------

def train(folder, workers, steps, *more, ends=0, uri="ck"):
    log = folder / f"log-{len(list(folder.glob('log-*')))}"
    words = ["train", "mlp", "--data", DATA, "--batch", "96", "--shards", "12", "--hidden", "32", "--steps", steps, "--log", log,
             "--save", log.with_suffix(".weights"), *(["--checkpoint", uri] if uri else []), *more]
    done = subprocess.run(list(map(str, [RINGFOLD, "run", "-n", workers, "-q", "--run-dir", log.with_suffix(".run"), "--",
                                         RINGFOLD, *words])),
                          cwd=folder, env=environment(), timeout=DEADLINE_S, capture_output=True, text=True)
    assert done.returncode == ends, (done.stdout, done.stderr)
    if ends:
        return done, None
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return lines, log.with_suffix(".weights")


@pytest.mark.parametrize("workers", (1, 2))
def test_stopped_and_resumed_is_as_if_it_had_not_been(tmp_path, workers):
    straight, _ = train(tmp_path, workers, 200, uri=None)
    words = [RINGFOLD, "run", "-n", str(workers), "-q", "--run-dir", "stopped", "--", RINGFOLD, "train", "mlp", "--data", DATA, "--batch", "96",
             "--shards", "12", "--hidden", "32", "--steps", "200", "--checkpoint", "ck", "--every", "1000"]
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (tmp_path / "stopped" / "metrics.jsonl").exists() and
             len((tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines()) > 20, "twenty steps", process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=DEADLINE_S) == 75
    stopped_at = whole(tmp_path / "ck")[-1]
    assert 20 < stopped_at < 200, "a last checkpoint was taken"
    rest, _ = train(tmp_path, workers, 200, "--resume", "auto", "--every", "1000")
    assert rest[0]["step"] == stopped_at + 1
    assert rest[-1]["digest"] == straight[-1]["digest"]


def test_resumed_on_other_numbers_of_workers(tmp_path):
    train(tmp_path, 2, 20, "--every", "10")
    held = {}
    for workers in (1, 2, 3):
        again, _ = train(tmp_path, workers, 20, "--resume", "auto")
        held[workers] = again[-1]["digest"]
    assert len(set(held.values())) == 1, "the restored state is the same bits"
    after = {}
    for workers in (1, 2, 3):
        rest, weights = train(tmp_path, workers, 40, "--resume", tmp_path / "ck", "--every", "1000", uri=f"ck{workers}")
        assert rest[0]["step"] == 21
        after[workers] = safetensors(weights)
    for workers in (2, 3):
        difference, size = 0.0, 0.0
        for name, (_, bytes_) in after[1].items():
            ours, theirs = memoryview(bytes_).cast("f"), memoryview(after[workers][name][1]).cast("f")
            difference += sum((a - b) ** 2 for a, b in zip(ours, theirs))
            size += sum(a * a for a in ours)
        assert (difference / size) ** 0.5 <= 1e-4


def test_what_is_there_is_not_trained_over(tmp_path):
    train(tmp_path, 1, 10, "--every", "5")
    done, _ = train(tmp_path, 1, 10, ends=1)
    assert "error[RF0310]" in done.stdout + done.stderr and "--resume auto" in done.stdout + done.stderr
    done, _ = train(tmp_path, 1, 10, "--resume", "7", ends=64)
    assert "no whole checkpoint of step 7" in done.stdout + done.stderr
    done, _ = train(tmp_path, 1, 5, "--resume", "auto", ends=64)
    assert "the checkpoint is of step 10" in done.stdout + done.stderr


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path):
    train(tmp_path, 2, 200, "--every", "20")
    *_, before, newest = whole(tmp_path / "ck")
    assert newest == 200
    part = sorted((tmp_path / "ck").glob("step-00000200-*/part-*"))[0]
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 4
    part.write_bytes(content)
    rest, _ = train(tmp_path, 2, 400, "--resume", "auto", "--every", "1000", "--keep", "0")
    assert rest[0]["step"] == before + 1
    bad = json.loads(next((tmp_path / "ck").glob("step-00000200-*/bad.json")).read_text())
    assert "part" in bad["reason"]
    assert whole(tmp_path / "ck")[-1] == 400


# --- groups ----------------------------------------------------------------------------------------------------------

def test_all_workers_die_and_the_job_goes_on_from_its_checkpoint(tmp_path, server):
    trainees, workers = running(tmp_path, server, 3)
    with trainees:
        wait_for_told(trainees, workers, "saved", 3)
        for worker in workers:
            worker.kill()
            worker.wait(timeout=DEADLINE_S)
        newest = whole(tmp_path / "ck")[-1]
        again = [trainees.start(worker) for worker in range(3)]
        trainees.wait_for_steps(again, size=3)  # who came a moment later has copied the state from the others
        assert {line["step"] for w in again for line in told(trainees, w, "returned")} == {newest}
        trainees.stop(again)
        no_wrong(trainees)


def test_a_flipped_bit_without_a_majority_rolls_back(tmp_path, server):
    trainees, workers = running(tmp_path, server, 2)
    with trainees:
        wait_for_told(trainees, workers, "saved", 2)
        flip_until(tmp_path, server, lambda: all(told(trainees, w, "returned") for w in workers))
        back = [told(trainees, w, "returned")[0] for w in workers]
        assert back[0]["step"] == back[1]["step"] > 0 and back[0]["rolled_back"] and back[1]["rolled_back"]
        trainees.wait_for_steps(workers, size=2, more=20)
        trainees.stop(workers)
        no_wrong(trainees)


def test_a_flipped_bit_with_a_majority_does_not(tmp_path, server):
    trainees, workers = running(tmp_path, server, 3)
    with trainees:
        wait_for_told(trainees, workers, "saved", 2)
        flip_until(tmp_path, server, lambda: any(e["peer"] == 1 for w in workers for e in trainees.events(w, "diverged")))
        trainees.wait_for_steps(workers, size=3)
        assert not any(told(trainees, w, "returned") for w in workers)
        trainees.stop(workers)


def test_a_returning_worker_copies_from_the_others(tmp_path, server):
    trainees, workers = running(tmp_path, server, 3)
    with trainees:
        wait_for_told(trainees, workers, "saved", 2)
        workers[1].kill()
        workers[1].wait(timeout=DEADLINE_S)
        workers[1] = trainees.start(1)
        wait_for(lambda: trainees.events(workers[1], "heal"), "it copies the state")
        trainees.wait_for_steps(workers, size=3)
        assert not told(trainees, workers[1], "returned")
        trainees.stop(workers)
        trainees.check_history()


def test_the_storage_fails_and_training_does_not(tmp_path, server):
    trainees, workers = running(tmp_path, server, 2)
    with trainees:
        wait_for_told(trainees, workers, "saved", 2)
        for fault, code in (("storage down 1500", "refuse"), ("storage full 1500", "full")):
            failures = sum(len(told(trainees, w, "failed")) for w in workers)
            for worker in (0, 1):
                order(tmp_path, server, worker, fault)
            wait_for(lambda: sum(len(told(trainees, w, "failed")) for w in workers) > failures, "a checkpoint fails")
            saved = len(told(trainees, workers[0], "saved"))
            wait_for(lambda: len(told(trainees, workers[0], "saved")) > saved, "a later one is written")
        trainees.stop(workers)
        history = trainees.check_history()
        assert len(history) > 50 and whole(tmp_path / "ck")


def test_a_worker_dies_while_it_writes(tmp_path, server):
    trainees, workers = running(tmp_path, server, 3)
    with trainees:
        wait_for_told(trainees, workers, "saved", 2)
        order(tmp_path, server, 1, "storage kill")
        workers[1].wait(timeout=DEADLINE_S)
        assert workers[1].returncode == -signal.SIGKILL
        saved = len(told(trainees, workers[0], "saved"))
        wait_for(lambda: len(told(trainees, workers[0], "saved")) > saved, "the others write one")
        left = [workers[0], workers[2]]
        trainees.stop(left)
        trainees.check_history()


def rollback(tmp_path, server, *words):
    return subprocess.run([RINGFOLD, "rollback", *words, "--store", server.uri, "--job", "trainees", "--key-file", "job.key"],
                          cwd=tmp_path, env=environment(), timeout=DEADLINE_S, capture_output=True, text=True)


def test_an_operator_rolls_back(tmp_path, server):
    trainees, workers = running(tmp_path, server, 2, TRAINEE_KEEP="0")
    with trainees:
        wait_for_told(trainees, workers, "saved", 4)
        steps = whole(tmp_path / "ck")
        target = steps[len(steps) // 2]
        done = rollback(tmp_path, server, "--checkpoint", str(tmp_path / "ck"), "--to", str(target))
        assert done.returncode == 0, done.stderr
        wait_for_told(trainees, workers, "returned", who=all)
        assert {told(trainees, w, "returned")[0]["step"] for w in workers} == {target}
        trainees.wait_for_steps(workers, size=2, more=15)
        bad = [json.loads(path.read_text())["reason"] for path in (tmp_path / "ck").glob("step-*/bad.json")]
        assert all(f"went back to step {target}" in reason for reason in bad)
        trainees.stop(workers)
        no_wrong(trainees)


def test_an_order_that_cannot_be_carried_out(tmp_path, server):
    trainees, workers = running(tmp_path, server, 2)
    with trainees:
        wait_for_told(trainees, workers, "saved", 2)
        done = rollback(tmp_path, server, "--checkpoint", str(tmp_path / "nothing"), "--to", "10")
        assert done.returncode != 0 and "no whole checkpoint" in done.stderr
        done = subprocess.run([RINGFOLD, "rollback", "--checkpoint", str(tmp_path / "ck"), "--store", server.uri, "--job", "another",
                               "--key-file", "job.key"], cwd=tmp_path, env=environment(), timeout=DEADLINE_S, capture_output=True,
                              text=True)
        assert done.returncode != 0 and "no running job 'another'" in done.stderr
        trainees.wait_for_steps(workers, size=2)
        assert not any(told(trainees, w, "returned") for w in workers)
        trainees.stop(workers)
        trainees.check_history()


def halves(tmp_path):
    """Two groups of different sizes, with a store each, train on from one checkpoint and write to the same place."""
    uri, aside = tmp_path / "ck", tmp_path / "aside"
    aside.mkdir()
    for name, size, steps, resume in (("common", 2, 20, "auto"), ("one", 2, 35, "20"), ("two", 1, 35, "20")):
        folder = tmp_path / name
        folder.mkdir()
        with Server(folder) as server:
            trainees, workers = running(folder, server, size, step_ms=10, uri=uri, steps=steps, TRAINEE_RESUME=resume, TRAINEE_KEEP="0")
            with trainees:
                for worker in workers:
                    worker.wait(timeout=DEADLINE_S)
                    last = trainees.lines(worker, "out")[-1]
                    assert last["event"] == "done" and last["steps"] == steps, last
        for path in uri.glob("step-*") if name == "one" else ():  # the second half knows nothing of the first
            if int(path.name.split("-")[1]) > 20:
                path.rename(aside / path.name)
    for path in aside.iterdir():
        path.rename(uri / path.name)
    return uri


def test_two_histories_are_refused_and_rolled_back(tmp_path):
    uri = halves(tmp_path)
    folder = tmp_path / "again"
    folder.mkdir()
    with Server(folder) as server:
        trainees, workers = running(folder, server, 2, step_ms=5, uri=uri, steps=45, TRAINEE_RESUME="auto")
        with trainees:
            for worker in workers:
                worker.wait(timeout=DEADLINE_S)
                last = trainees.lines(worker, "out")[-1]
                assert last["event"] == "error" and last["code"] == "RF_EDIVERGED", last
                assert "parted at step 21" in last["text"], last
    folder = tmp_path / "rolled"
    folder.mkdir()
    with Server(folder) as server:
        trainees, workers = running(folder, server, 2, step_ms=5, uri=uri, steps=45, TRAINEE_RESUME="auto", TRAINEE_ROLLBACK="1")
        with trainees:
            ends = []
            for worker in workers:
                worker.wait(timeout=DEADLINE_S)
                lines = trainees.lines(worker, "out")
                assert lines[-1]["event"] == "done" and lines[-1]["steps"] == 45, lines[-1]
                assert told(trainees, worker, "returned")[0]["step"] == 20
                ends.append(lines[-1]["value"])
            assert len(set(ends)) == 1
            trainees_steps = [c["step"] for c in trainees.commits(workers[0]) if not c["measure"]]
            assert trainees_steps == list(range(20, 45))


def test_two_groups_that_write_to_one_place_notice(tmp_path):
    uri = tmp_path / "ck"
    groups = []
    try:
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            server = Server(folder)
            groups.append((server, *running(folder, server, 1, step_ms=10, uri=uri, TRAINEE_RESUME="auto", every=5)))
        (_, first, (a,)), (_, second, (b,)) = groups
        wait_for(lambda: told(first, a, "parted") or told(second, b, "parted"), "one of them notices the other")
        for trainees, worker in ((first, a), (second, b)):
            if told(trainees, worker, "parted"):
                worker.wait(timeout=DEADLINE_S)
                assert "parted from this one at step" in told(trainees, worker, "parted")[0]["text"]
    finally:
        for server, trainees, _ in groups:
            trainees.__exit__()
            server.__exit__()


@pytest.mark.parametrize("runs", (100,))
def test_killed_at_random_moments(tmp_path, runs):
    """Whatever the moment, what is found again is the newest complete checkpoint or, where that was just being made, the one before."""
    dice = random.Random(7)
    uri, reached = tmp_path / "ck", 0
    variables = environment(RINGFOLD_DETECT="500ms", TRAINEE_CHECKPOINT=str(uri), TRAINEE_EVERY="2", TRAINEE_RESUME="auto")
    for run in range(runs):
        out = open(tmp_path / "out", "w")
        process = subprocess.Popen([TRAINEE, "1000000", "2"], stdout=out, stderr=subprocess.DEVNULL, env=variables)
        out.close()
        before = whole(uri)

        def started():
            return '"returned"' in (tmp_path / "out").read_text() or '"none"' in (tmp_path / "out").read_text()
        wait_for(started, f"run {run} starts", process)
        time.sleep(dice.random() * 0.15)
        process.kill()
        process.wait(timeout=DEADLINE_S)
        lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines() if line.endswith("}")]
        assert not [line for line in lines if line["event"] in ("wrong", "error")], lines
        back = [line for line in lines if line["event"] == "checkpoint" and line["what"] == "returned"]
        if before:
            assert back and back[0]["step"] == before[-1], (run, back, before)
        reached = max([reached, *[line["step"] for line in lines if line["event"] == "commit"]])
    verified = subprocess.run([RINGFOLD, "ckpt", "verify", str(uri)], env=environment(), timeout=DEADLINE_S, capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert reached > runs and len({path.parent for path in uri.glob("step-*/part-*")}) < 12
