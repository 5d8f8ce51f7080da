"""Partitions between hosts: at most one side goes on, and after the heal all are one group again, with one history."""
import pytest

from helpers import DEADLINE_S, Server, wait_for
from hosts import Hosts
from trainees import Trainees

STORE_PORT = 7411


@pytest.fixture
def hosts():
    with Hosts(4) as made:
        yield made


def started(tmp_path, hosts, store_host, minimum):
    server = Server(tmp_path, bind=f"{hosts.address(store_host)}:{STORE_PORT}", before=hosts.on(store_host))
    trainees = Trainees(tmp_path, server.uri, 4, minimum)
    workers = [trainees.start(host, before=hosts.on(host)) for host in range(4)]
    trainees.wait_for_steps(workers, size=4)
    return server, trainees, workers


def told_pause(trainees, workers):
    wait_for(lambda: all(trainees.events(w, "pause") for w in workers), "a pause of the side that stands still")


def end(trainees, workers, hosts):
    hosts.heal()
    trainees.wait_for_steps(workers, size=4)
    generations = {trainees.last(w)["generation"] for w in workers}
    assert len(generations) == 1
    trainees.stop(workers)
    trainees.check_history()


@pytest.mark.parametrize("sides, store_host, minimum", [
    (([0, 1, 2], [3]), 0, 1),
    (([0, 1, 2], [3]), 3, 1),
    (([0, 1, 2], [3]), 0, 3),
    (([0, 1, 2], [3]), 3, 3),
    (([0, 1], [2, 3]), 0, 1),
    (([0, 1], [2, 3]), 3, 1),
    (([0, 1], [2, 3]), 0, 3),
])
def test_split(tmp_path, hosts, sides, store_host, minimum):
    server, trainees, workers = started(tmp_path, hosts, store_host, minimum)
    with server, trainees:
        hosts.split(*sides)
        going = next([workers[h] for h in side] for side in sides if store_host in side)
        others = [w for w in workers if w not in going]
        if len(going) >= minimum:
            trainees.wait_for_steps(going, size=len(going))
        else:
            told_pause(trainees, going)
        told_pause(trainees, others)
        stood = {w: trainees.last(w)["step"] for w in others}
        if len(going) >= minimum:
            trainees.wait_for_steps(going, more=20)
        else:
            stood.update({w: trainees.last(w)["step"] for w in going})
            told = {w: len(trainees.events(w, "pause")) for w in workers}
            assert all(told.values())
        assert {w: trainees.last(w)["step"] for w in stood} == stood, "a side that must stand still went on"
        end(trainees, workers, hosts)


@pytest.mark.parametrize("sender, receiver", [(1, 2), (2, 1)])
def test_one_way_between_two_workers(tmp_path, hosts, sender, receiver):
    """Both reach the store and all others: one of the two has to go, and only one."""
    server, trainees, workers = started(tmp_path, hosts, 0, 1)
    with server, trainees:
        hosts.cut_way(sender, receiver)
        three = [w for w in workers if w.worker in (0, 3)]
        trainees.wait_for_steps(three, size=3)
        end(trainees, workers, hosts)


def test_one_way_to_the_store(tmp_path, hosts):
    """Nothing that worker 3 sends reaches the store's host, where worker 0 is; it hears everything."""
    server, trainees, workers = started(tmp_path, hosts, 0, 1)
    with server, trainees:
        hosts.cut_way(3, 0)
        trainees.wait_for_steps(workers[:3], size=3)
        end(trainees, workers, hosts)


def test_the_store_may_restart(tmp_path, hosts):
    """Training goes on without it, and what needs it waits for its return."""
    journal = ["--journal", str(tmp_path / "journal")]
    bind = f"{hosts.address(0)}:{STORE_PORT}"
    server = Server(tmp_path, bind=bind, before=hosts.on(0), more=journal)
    with server, Trainees(tmp_path, server.uri, 4, 1) as trainees:
        workers = [trainees.start(host, before=hosts.on(host)) for host in range(4)]
        trainees.wait_for_steps(workers, size=4)
        generation = trainees.last(workers[0])["generation"]
        server.process.kill()
        server.process.wait(timeout=DEADLINE_S)
        trainees.wait_for_steps(workers, more=30, size=4)
        with Server(tmp_path, bind=bind, before=hosts.on(0), more=journal):
            trainees.wait_for_steps(workers, more=10, size=4)
            assert {trainees.last(w)["generation"] for w in workers} == {generation}, "it disturbed the group"
            workers[2].kill()
            trainees.wait_for_steps([w for w in workers if w.worker != 2], size=3)
            workers[2] = trainees.start(2, before=hosts.on(2))
            trainees.wait_for_steps(workers, size=4)
            trainees.stop(workers)
            trainees.check_history()
