from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from edge_rt.errors import DownloadError, StorageError
from edge_rt.store.recipes import FileSpec
from edge_rt.store.sources_local import write_checked
from edge_rt.system.files import check_space, tree_bytes
from tests.store.builders import sha256

DATA = b"0123456789"
SPEC = FileSpec("x", len(DATA), sha256(DATA))


def test_a_right_file_is_written(tmp_path):
    seen = []
    digest = write_checked([DATA[:4], DATA[4:]], tmp_path / "x", SPEC, seen.append)
    assert (tmp_path / "x").read_bytes() == DATA
    assert (digest, seen) == (sha256(DATA), [4, 10])


@pytest.mark.parametrize(
    ("data", "message"),
    [(DATA[:9], "wrong size"), (DATA + b"!", "wrong size"), (b"x" * 10, "wrong content"), (b"", "wrong size")],
)
def test_a_wrong_file_is_removed(tmp_path, data, message):
    with pytest.raises(DownloadError, match=message):
        write_checked([data], tmp_path / "x", SPEC, lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_read_beyond_the_expected_size(tmp_path):
    taken = []

    def far_too_much():
        for number in range(100):
            taken.append(number)
            yield b"x" * 8

    with pytest.raises(DownloadError, match="more than 10 bytes"):
        write_checked(far_too_much(), tmp_path / "x", SPEC, lambda _: None)
    assert taken == [0, 1]


def test_an_interrupt_removes_the_file(tmp_path):
    def interrupted():
        yield DATA
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_checked(interrupted(), tmp_path / "x", FileSpec("x"), lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_never_overwritten(tmp_path):
    (tmp_path / "x").write_bytes(b"mine")
    with pytest.raises(StorageError):
        write_checked([DATA], tmp_path / "x", SPEC, lambda _: None)
    assert (tmp_path / "x").read_bytes() == b"mine"


def test_too_little_space_is_said_beforehand(tmp_path):
    with pytest.raises(StorageError, match=r"1000\.0 TB needed"):
        check_space(tmp_path / "not" / "there", 10**15, "a model")


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_full_disk_leaves_nothing_behind(tmp_path):
    script = f"""
        import resource
        from pathlib import Path
        from edge_rt.errors import DownloadError, StorageError
        from edge_rt.store.recipes import FileSpec
        from edge_rt.store.sources_local import write_checked

        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            target = Path({str(tmp_path)!r}, "x")
            write_checked((b"x" * 7000 for _ in range(100)), target, FileSpec("x"), lambda _: None)
        except StorageError as error:
            assert not isinstance(error, DownloadError)
            print(error)
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert "the disk is full or a limit is reached" in result.stdout, result.stderr
    assert list(tmp_path.iterdir()) == []


def test_bytes_of_a_folder_do_not_follow_links(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"12345")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert 5 <= tree_bytes(tmp_path) < 1000
    assert tree_bytes(tmp_path / "none") == 0
