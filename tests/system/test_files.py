"""A file or folder is as before or whole, whatever fails."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
import sys
import textwrap

import pytest

from edge_rt.errors import StorageError
from edge_rt.system.files import CHUNK, in_use, replace_folder, sha256_file, storage_errors, sync, write_atomically
from tests.helpers.packages import listing

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")


def windows_error(code):
    """Return an error as Windows raises it; elsewhere the attribute has to be set."""
    error = PermissionError(errno.EACCES, "Access is denied")
    error.winerror = code
    return error


def make(folder, content):
    folder.mkdir()
    (folder / "x").write_text(content)
    return folder


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_written_and_replaced(tmp_path, durable):
    path = tmp_path / "a" / "file"
    for content in (b"one", b"second"):
        write_atomically(path, [content[:2], content[2:]], durable=durable, parents=True)
        assert path.read_bytes() == content
    assert listing(tmp_path / "a") == ["file"]


@pytest.mark.parametrize("failure", [ValueError("mine"), KeyboardInterrupt(), OSError(errno.EIO, "Input/output error")])
def test_an_error_on_the_way_leaves_the_file_as_it_was(tmp_path, failure):
    (tmp_path / "file").write_bytes(b"old")

    def parts():
        yield b"new"
        raise failure

    with pytest.raises(StorageError if isinstance(failure, OSError) else type(failure)):
        write_atomically(tmp_path / "file", parts())
    assert (tmp_path / "file").read_bytes() == b"old"
    assert listing(tmp_path) == ["file"]


@pytest.mark.parametrize("name", ["missing/file", "x" * 300, "folder"])
def test_a_place_that_cannot_be_written(tmp_path, name):
    make(tmp_path / "folder", "x")
    with pytest.raises(StorageError, match="could not be written"):
        write_atomically(tmp_path / name, [b"x"])
    assert listing(tmp_path) == ["folder"]


def test_the_longest_name_of_a_file_system_is_possible(tmp_path):
    write_atomically(tmp_path / ("ü" * 127), [b"x"])
    assert listing(tmp_path) == ["ü" * 127]


@posix
def test_a_private_file_is_its_owners(tmp_path):
    for private, mode in ((True, 0o600), (False, 0o644)):
        before = os.umask(0o022)
        try:
            write_atomically(tmp_path / "file", [b"x"], private=private)
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


@posix
def test_a_full_disk_keeps_what_was_there(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    script = f"""
        import resource
        from pathlib import Path
        from edge_rt.errors import StorageError
        from edge_rt.system.files import write_atomically

        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            write_atomically(Path({str(tmp_path)!r}, "file"), [b"x" * 7000] * 100)
        except StorageError as error:
            print(error)
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert "File too large" in result.stdout, result.stderr
    assert (tmp_path / "file").read_bytes() == b"old"
    assert listing(tmp_path) == ["file"]


def test_a_folder_takes_the_place_of_another(tmp_path):
    new, old = make(tmp_path / "new", "new"), make(tmp_path / "final", "old")
    replace_folder(new, old, tmp_path / "aside")
    assert [(tmp_path / name / "x").read_text() for name in ("final", "aside")] == ["new", "old"]
    assert listing(tmp_path) == ["aside", "final"]


def test_a_folder_that_cannot_be_replaced_is_put_back(tmp_path):
    old = make(tmp_path / "final", "old")
    with pytest.raises(FileNotFoundError):
        replace_folder(tmp_path / "none", old, tmp_path / "aside")
    assert (old / "x").read_text() == "old"
    assert listing(tmp_path) == ["final"]


@pytest.mark.parametrize("code", [5, 32, 33, 1224])
def test_what_windows_says_of_a_file_in_use_is_told(tmp_path, code):
    told = in_use(tmp_path / "tiny", windows_error(code))
    assert isinstance(told, StorageError)
    assert "tiny" in told.what
    assert (f"error {code}" in told.numbers, "Nothing was changed" in told.numbers) == (True, True)
    assert "loaded the model" in told.action


@pytest.mark.parametrize("code", [5, 32, 33])
def test_a_read_that_windows_refuses_is_no_refused_replacement(tmp_path, code):
    def refused():
        with storage_errors(tmp_path / "tiny", "cannot be read"):
            raise windows_error(code)

    with pytest.raises(StorageError, match="tiny cannot be read") as caught:
        refused()
    assert caught.value.what.endswith("tiny cannot be read.")
    assert caught.value.numbers == f"Windows error {code}: Access is denied."
    assert caught.value.action.endswith("else check its permissions.")


@pytest.mark.parametrize("error", [windows_error(3), OSError(errno.EACCES, "Permission denied")])
def test_other_errors_are_left_alone(tmp_path, error):
    assert in_use(tmp_path, error) is None


def test_the_store_tells_of_a_file_in_use(tmp_path):
    with pytest.raises(StorageError, match="while it is in use"), storage_errors(tmp_path / "tiny"):
        raise windows_error(32)


@pytest.mark.parametrize("is_windows", [False, True])
def test_files_and_folders_are_synced(tmp_path, is_windows):
    (tmp_path / "file").write_text("x")
    sync(tmp_path / "file", is_windows=is_windows)
    # With write access, as Windows wants it, no system opens a folder: there none is.
    sync(tmp_path, is_windows=is_windows)
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "none", is_windows=is_windows)


def test_the_hash_of_a_file_and_how_far_it_was_read(tmp_path):
    data = bytes(range(256)) * (CHUNK // 128)
    (tmp_path / "x").write_bytes(data)
    seen = []
    assert sha256_file(tmp_path / "x", seen.append) == hashlib.sha256(data).hexdigest()
    assert seen == [CHUNK, 2 * CHUNK]


@pytest.mark.parametrize("name", ["none", "."])
def test_what_cannot_be_read(tmp_path, name):
    with pytest.raises(StorageError, match="cannot be read"):
        sha256_file(tmp_path / name)
