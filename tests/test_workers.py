"""How the tests themselves are shared out: see ``tests/helpers/workers.py`` and ``tests/helpers/pairs.py``."""

from __future__ import annotations

import os
import threading
from itertools import combinations

import pytest

from tests.helpers.pairs import all_pairs
from tests.helpers.workers import SoleWorker, Worker

fcntl = pytest.importorskip("fcntl")

TIMEOUT = 60


@pytest.fixture
def workers(tmp_path):
    # Each opens the locks itself, so threads exclude each other as processes do.
    return [Worker(tmp_path, number, 2) for number in range(2)]


def is_held(path):
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Test(threading.Thread):
    """A test of a worker, which begins and ends when told to.

    Attributes:
        begun: set once it is its turn.
        ending: to be set for it to end.
    """

    __test__ = False

    def __init__(self, worker, log, *, alone=False):
        super().__init__(daemon=True)
        self.begun, self.ending = threading.Event(), threading.Event()
        self._worker, self._log, self._alone = worker, log, alone
        self.start()

    def run(self):
        with self._worker.turn(alone=self._alone):
            self._log.append(("begins", self._alone))
            self.begun.set()
            self.ending.wait(TIMEOUT)
            self._log.append(("ends", self._alone))

    def end(self):
        self.ending.set()
        self.join(TIMEOUT)
        assert not self.is_alive()


def test_ordinary_tests_run_beside_each_other(workers):
    tests = [Test(worker, []) for worker in workers]
    assert all(test.begun.wait(TIMEOUT) for test in tests)
    for test in tests:
        test.end()


@pytest.mark.parametrize("first", [False, True], ids=["an ordinary one first", "the one alone first"])
def test_alone_no_other_test_runs(workers, tmp_path, first):
    log = []
    one = Test(workers[0], log, alone=first)
    assert one.begun.wait(TIMEOUT)
    other = Test(workers[1], log, alone=not first)
    while not is_held(tmp_path / "gate"):
        """The other has come to the gate, and waits for its turn behind it."""
    other.ending.set()
    one.end()
    other.end()
    assert log == [("begins", first), ("ends", first), ("begins", not first), ("ends", not first)]


def test_who_waits_to_be_alone_comes_before_those_that_come_later(workers, tmp_path):
    log = []
    one = Test(workers[0], log)
    assert one.begun.wait(TIMEOUT)
    other = Test(workers[1], log, alone=True)
    while not is_held(tmp_path / "gate"):
        """As above."""
    later = Test(Worker(tmp_path, 0, 2), log)
    for test in (later, other):
        test.ending.set()
    one.end()
    other.end()
    later.end()
    assert log[2:4] == [("begins", True), ("ends", True)]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity")
@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_workers_share_the_cpus(count, tmp_path):
    before, shares = os.sched_getaffinity(0), []
    try:
        for number in range(count):
            with Worker(tmp_path, number, count).turn(alone=False):
                shares.append(os.sched_getaffinity(0))
            os.sched_setaffinity(0, before)
        with Worker(tmp_path, 0, count).turn(alone=True):
            assert os.sched_getaffinity(0) == before
    finally:
        os.sched_setaffinity(0, before)
    assert set().union(*shares) == before
    assert count > len(before) or sum(map(len, shares)) == len(before)


@pytest.mark.parametrize("worker", [SoleWorker, lambda folder: Worker(folder, 0, 1)], ids=["sole", "one of several"])
def test_what_is_made_once(worker, tmp_path):
    made = []

    def make(path):
        made.append(path)
        path.write_text("x")
        if len(made) == 1:
            raise KeyError("half-way")

    with pytest.raises(KeyError):
        worker(tmp_path).made_once("file.txt", make)
    paths = {worker(tmp_path).made_once("file.txt", make) for _ in range(2)}
    assert len(made) == 2
    assert [(path.name, path.read_text()) for path in paths] == [("file.txt", "x")]


@pytest.mark.parametrize("sizes", [(2, 3), (2, 2, 2), (7, 3, 5), (4, 3, 2, 2)])
def test_all_pairs_meet(sizes):
    axes = [[f"{axis}{at}" for at in range(size)] for axis, size in enumerate(sizes)]
    rows = all_pairs(*axes)
    for one, other in combinations(range(len(axes)), 2):
        assert {(row[one], row[other]) for row in rows} == {(x, y) for x in axes[one] for y in axes[other]}
    assert all(len(row) == len(axes) for row in rows)
    assert rows == all_pairs(*axes)


def test_all_pairs_are_fewer_than_all_combinations():
    assert len(all_pairs(range(7), range(3), range(5))) <= 38
