from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time

import pytest

from edge_rt.errors import StorageError
from edge_rt.store.staging import (
    STALE_SECONDS,
    discard,
    entry_lock,
    publish,
    reclaim,
    staging_folder,
)


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def renamed(folder, *, host=None, pid=None):
    """Make a private folder look like somebody else's."""
    with staging_folder(folder) as path:
        _, kind_host, kind_pid, rest = path.name.replace(".tmp", "tmp").split("-")
    other = folder / f".tmp-{host or kind_host}-{pid or kind_pid}-{rest}"
    other.mkdir()
    (other / "part").write_bytes(b"x")
    return other


def age(path):
    past = time.time() - STALE_SECONDS - 60
    for entry in (*path.iterdir(), path):
        os.utime(entry, (past, past))


def test_a_private_folder_ends_with_its_block(tmp_path):
    def work():
        with staging_folder(tmp_path) as path:
            (path / "x").write_bytes(b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert list(tmp_path.iterdir()) == []


def test_publish_replaces_in_one_step(tmp_path):
    for content in (b"old", b"new"):
        with staging_folder(tmp_path) as path:
            (path / "x").write_bytes(content)
            publish(path, tmp_path / "final")
    assert (tmp_path / "final" / "x").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_what_a_dead_process_left_is_reclaimed(tmp_path):
    left = renamed(tmp_path, pid=dead_pid())
    assert reclaim(tmp_path) == [left]
    assert not left.exists()


def test_what_a_live_process_writes_is_kept(tmp_path):
    with staging_folder(tmp_path) as path:
        assert reclaim(tmp_path) == []
        assert path.exists()


def test_another_machine_is_judged_by_age_alone(tmp_path):
    left = renamed(tmp_path, host="00000000", pid=dead_pid())
    assert reclaim(tmp_path) == []
    age(left)
    assert reclaim(tmp_path) == [left]


def test_a_growing_file_keeps_its_folder_young(tmp_path):
    left = renamed(tmp_path, host="00000000")
    age(left)
    (left / "part").write_bytes(b"more")
    assert reclaim(tmp_path) == []


def test_other_hidden_names_are_left_alone(tmp_path):
    names = [".tmp", ".trash-x", ".tmp-00000000-1", ".t-"]
    for name in names:
        (tmp_path / name).mkdir()
        age(tmp_path / name)
    assert reclaim(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_link_is_removed_and_its_target_kept(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "x").write_bytes(b"x")
    (tmp_path / "link").symlink_to(target)
    discard(tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target"]
    assert (target / "x").exists()


def test_discard_says_what_it_freed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"12345")
    assert discard(tmp_path / "a") == 5
    assert discard(tmp_path / "a") == 0


def test_a_held_lock_is_refused_without_waiting(tmp_path):
    with (
        entry_lock(tmp_path / "a.lock", on_wait=None),
        pytest.raises(StorageError, match="Another process"),
        entry_lock(tmp_path / "a.lock", on_wait=None),
    ):
        pass


def test_a_held_lock_is_waited_for(tmp_path):
    order = []
    waiting = threading.Event()

    def second():
        with entry_lock(tmp_path / "a.lock", on_wait=waiting.set, poll_seconds=0.01):
            order.append("second")

    thread = threading.Thread(target=second)
    with entry_lock(tmp_path / "a.lock", on_wait=None):
        thread.start()
        assert waiting.wait(60)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert not list(tmp_path.iterdir())


def test_a_lock_ends_with_its_holder(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from edge_rt.store.staging import entry_lock\n"
        "with entry_lock(Path(sys.argv[1]), on_wait=None): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline().strip() == b"held"
        with pytest.raises(StorageError, match="Another process"), entry_lock(tmp_path / "a.lock", on_wait=None):
            pass
        holder.kill()
        holder.wait()
        with entry_lock(tmp_path / "a.lock", on_wait=None):
            pass


class Lockless:
    """A lock on a file system that answers with an error."""

    is_locked = False

    def __init__(self, code):
        self._code = code

    def acquire(self, *, blocking):
        assert not blocking
        raise OSError(self._code, os.strerror(self._code))

    def release(self):
        pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_goes_on_without_the_hint(tmp_path, code):
    with entry_lock(tmp_path / "a.lock", on_wait=None, make=lambda _: Lockless(code)):
        pass


def test_a_lock_that_fails_otherwise_is_told(tmp_path):
    with (
        pytest.raises(StorageError, match="Input/output error"),
        entry_lock(tmp_path / "a.lock", on_wait=None, make=lambda _: Lockless(errno.EIO)),
    ):
        pass


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_is_no_lock(tmp_path):
    (tmp_path / "a.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError), entry_lock(tmp_path / "a.lock", on_wait=None):
        pass
    assert not (tmp_path / "precious").exists()
