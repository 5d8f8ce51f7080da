"""How many system calls a collective in shared memory takes: none, where both ranks run."""
import pytest

from helpers import ByHand, Server, end_of


@pytest.mark.parametrize("count", (1, 1024, 65536))
def test_shared_memory_needs_no_system_calls(tmp_path, count):
    """Counted by strace between marks that the worker sets every 10 calls. A rank that the machine does not let run
    makes the other one sleep, and that takes system calls; so what counts is the quietest part."""
    trace = tmp_path / "trace"
    with Server(tmp_path) as store, ByHand(tmp_path, store.uri, 2) as workers:
        under = ["strace", "-f", "-qq", "-o", trace]
        both = [workers.start(rank, "quiet", 5000, count, before=[] if rank else under) for rank in range(2)]
        for process in both:
            status, entry, err = end_of(process)
            assert status == 0 and entry["event"] == "done" and entry["transport"] == "shm", (entry, err)
    lines = [line.split(None, 1) for line in trace.read_text().splitlines()]
    caller = next(thread for thread, what in lines if what.startswith("getppid("))
    calls = [what for thread, what in lines if thread == caller]
    marks = [number for number, what in enumerate(calls) if what.startswith("getppid(")]
    assert len(marks) == 500
    between = [b - a - 1 for a, b in zip(marks, marks[1:])]
    assert min(between) == 0, sorted(between)
