"""Workers of an elastic job die, freeze, are cut off, come and go on one host: one history, every step exact, and whoever is not
of the job is refused without disturbing it."""
import signal
import time

import pytest

from helpers import DEADLINE_S, KEY, Server, environment, wait_for
from trainees import Trainees, flip_until, order


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path) as started:
        yield started


def running(tmp_path, server, size, minimum=1, transport="tcp", step_ms=20, **variables):
    trainees = Trainees(tmp_path, server.uri, size, minimum, step_ms=step_ms, RINGFOLD_TRANSPORT=transport, **variables)
    workers = [trainees.start(worker) for worker in range(size)]
    trainees.wait_for_steps(workers, size=size)
    return trainees, workers


def end(trainees, workers, but=()):
    trainees.wait_for_steps(workers, size=len(workers))
    trainees.stop(workers)
    trainees.check_history(but)


@pytest.mark.parametrize("transport", ("shm", "tcp"))
@pytest.mark.parametrize("victims", ((0,), (2,), (3,), (0, 2), (1, 2, 3)))
def test_killed_workers_come_back(tmp_path, server, transport, victims):
    trainees, workers = running(tmp_path, server, 4, transport=transport)
    with trainees:
        for victim in victims:
            workers[victim].kill()
        left = [w for w in workers if w.worker not in victims]
        trainees.wait_for_steps(left, size=len(left))
        for victim in victims:
            workers[victim].wait(timeout=DEADLINE_S)
            workers[victim] = trainees.start(victim)
        end(trainees, workers)


@pytest.mark.parametrize("transport", ("shm", "tcp"))
def test_a_frozen_worker_is_left_out_and_comes_back(tmp_path, server, transport):
    trainees, workers = running(tmp_path, server, 3, transport=transport)
    with trainees:
        workers[1].send_signal(signal.SIGSTOP)
        left = [workers[0], workers[2]]
        trainees.wait_for_steps(left, size=2, more=20)
        stood = trainees.last(workers[1])["step"]
        workers[1].send_signal(signal.SIGCONT)
        wait_for(lambda: trainees.events(workers[1], "out"), "the thawed worker learns that it is out")
        wait_for(lambda: trainees.events(workers[1], "heal"), "it copies the state")
        end(trainees, workers)
        assert trainees.last(workers[1])["step"] > stood


def test_a_worker_that_is_cut_off_comes_back(tmp_path, server):
    trainees, workers = running(tmp_path, server, 3, RINGFOLD_FAULTS="1")
    with trainees:
        order(tmp_path, server, 2, "cut 2000")
        trainees.wait_for_steps(workers[:2], size=2)
        wait_for(lambda: trainees.events(workers[2], "heal"), "the worker is back and copies the state")
        end(trainees, workers)


@pytest.mark.parametrize("size", (3, 4))
def test_a_flipped_bit_is_healed_by_the_majority(tmp_path, server, size):
    trainees, workers = running(tmp_path, server, size, RINGFOLD_FAULTS="1")
    with trainees:
        flip_until(tmp_path, server, lambda: any(e["peer"] == 1 for w in workers for e in trainees.events(w, "diverged")))
        wait_for(lambda: trainees.events(workers[1], "heal"), "the worker copies the majority's state")
        trainees.wait_for_steps(workers, size=size)
        trainees.stop(workers)


def test_a_flipped_bit_without_a_majority_stops_all(tmp_path, server):
    trainees, workers = running(tmp_path, server, 2, RINGFOLD_FAULTS="1")
    with trainees:
        flip_until(tmp_path, server, lambda: any(w.poll() is not None for w in workers))
        for worker in workers:
            worker.wait(timeout=DEADLINE_S)
            last = trainees.lines(worker, "out")[-1]
            assert worker.returncode == 1 and last["code"] == "RF_EDIVERGED", last
            assert "no majority of the 2 ranks" in last["text"]


def test_a_slow_worker_is_named_put_out_and_comes_back(tmp_path, server):
    trainees, workers = running(tmp_path, server, 4, step_ms=80, RINGFOLD_COOL_DOWN="1s", RINGFOLD_DETECT="3s")
    with trainees:
        trainees.wait_for_steps(workers, more=8, size=4)
        before = trainees.last(workers[3])["step"]
        workers[3].send_signal(signal.SIGUSR1)
        wait_for(lambda: trainees.events(workers[3], "out"), "the slow worker is put out")
        assert trainees.events(workers[3], "out")[0]["text"] == "it was too slow"
        named = [e for w in workers for e in trainees.events(w, "slow") if e["peer"] == 3]
        assert named and named[0]["text"] == "processor" and named[0]["ratio"] > 5
        slow_steps = [c for c in trainees.commits(workers[3]) if c["step"] > before]
        assert named[0]["step"] <= before + 4 and len(slow_steps) <= 6, (before, named[0], len(slow_steps))
        trainees.wait_for_steps(workers[:3], size=3)
        workers[3].send_signal(signal.SIGUSR1)
        end(trainees, workers)


def test_below_the_minimum_the_job_pauses_and_resumes(tmp_path, server):
    trainees, workers = running(tmp_path, server, 3, minimum=3)
    with trainees:
        workers[0].kill()
        left = workers[1:]
        wait_for(lambda: all(trainees.events(w, "pause") for w in left), "the pause is told")
        assert "the minimum is 3" in trainees.events(left[0], "pause")[0]["text"]
        stood = [trainees.last(w)["step"] for w in left]
        workers[0] = trainees.start(0)
        trainees.wait_for_steps(workers, size=3)
        assert all(trainees.last(w)["step"] > step for w, step in zip(left, stood))
        end(trainees, workers)


def test_workers_join_and_leave(tmp_path, server):
    trainees, workers = running(tmp_path, server, 2)
    with trainees:
        joined = [trainees.start(worker) for worker in (2, 3)]
        trainees.wait_for_steps(workers + joined, size=4)
        joined[0].kill()
        trainees.wait_for_steps(workers + joined[1:], size=3)
        end(trainees, workers + joined[1:])


def refused(trainees, process, code, words):
    process.wait(timeout=DEADLINE_S)
    last = trainees.lines(process, "out")[-1]
    assert process.returncode == 1 and last["code"] == code, last
    for word in words:
        assert word in last["text"], last


def test_who_is_not_of_the_job_is_refused(tmp_path, server):
    """A wrong key, another model, another table of algorithms, another job: each is told why, and the group stays in its generation."""
    trainees, workers = running(tmp_path, server, 3)
    with trainees:
        generation = trainees.last(workers[0])["generation"]
        (tmp_path / "other.key").write_bytes(KEY[::-1])
        refused(trainees, trainees.start(7, RINGFOLD_KEY_FILE=str(tmp_path / "other.key")), "RF_EAUTH", ["key"])
        refused(trainees, trainees.start(8, extra=[3]), "RF_EREFUSED", ["worker 8 was refused", "trains something else"])
        (tmp_path / "table.json").write_text('{"format": "ringfold-tuning", "version": 1, "rules": ['
                                             '{"collective": "allreduce", "link": "tcp", "algorithm": "naive"}]}')
        refused(trainees, trainees.start(10, RINGFOLD_TUNING=str(tmp_path / "table.json")), "RF_EREFUSED",
                ["worker 10 was refused", "table of algorithms"])
        refused(trainees, trainees.start(9, RINGFOLD_JOB="another", RINGFOLD_MIN_SIZE="2",
                                           RINGFOLD_START_TIMEOUT="1s"), "RF_ETIMEDOUT",
                ["1 of 3 workers", "missing: worker 0, 1, 2"])
        trainees.wait_for_steps(workers, size=3)
        assert {trainees.last(w)["generation"] for w in workers} == {generation}
        trainees.stop(workers)
        trainees.check_history(but=("7.0", "8.0", "9.0", "10.0"))


def test_two_processes_of_one_id(tmp_path, server):
    """The later start takes the place; the earlier one is told and ends, and the group goes on."""
    trainees, workers = running(tmp_path, server, 3)
    with trainees:
        later = trainees.start(1)
        workers[1].wait(timeout=DEADLINE_S)
        last = trainees.lines(workers[1], "out")[-1]
        assert workers[1].returncode == 1 and last["code"] == "RF_ECONFLICT" and "started again" in last["text"]
        workers[1] = later
        end(trainees, workers, but=("1.0",))


def test_an_ended_job_takes_nobody_in(tmp_path, server):
    trainees, workers = running(tmp_path, server, 2)
    with trainees:
        trainees.stop(workers)
        late = trainees.start(0)
        refused(trainees, late, "RF_EENDED", ["has ended"])


@pytest.mark.parametrize("faults", (20,))
def test_kill_after_kill(tmp_path, server, faults):
    """Each as soon as the one before is back."""
    trainees, workers = running(tmp_path, server, 4, transport="shm")
    with trainees:
        for fault in range(faults):
            victim = fault * 7 % 4
            workers[victim].kill()
            workers[victim].wait(timeout=DEADLINE_S)
            workers[victim] = trainees.start(victim)
            trainees.wait_for_steps(workers, more=1, size=4)
            time.sleep(0.001 * (fault % 7))  # so that they strike at different places of a step
        end(trainees, workers)
