import errno
import os
import socket
from pathlib import Path

import pytest

from edge_rt.errors import InvalidModelFile, ModelNotFound, StorageError
from edge_rt.export.sources.model_file import HeaderBytes, open_model_file
from tests.helpers.gguf_factory import good_raw

MIB = 1 << 20


def refusal(path, error):
    with pytest.raises(error) as caught, open_model_file(path):
        pass
    assert caught.type is error
    assert caught.value.numbers
    assert caught.value.action
    return str(caught.value)


class RegularAtFirst(type(Path())):
    """A path whose file is replaced between the look and the opening."""

    def stat(self, **options):
        return Path(__file__).stat()


def test_missing_file_is_not_found(tmp_path):
    assert "none.gguf" in refusal(tmp_path / "none.gguf", ModelNotFound)


def test_path_below_a_file_is_not_found(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    assert "none.gguf" in refusal(tmp_path / "file" / "none.gguf", ModelNotFound)


def test_folder_is_refused(tmp_path):
    assert "a folder" in refusal(tmp_path, InvalidModelFile)


def test_root_folder_is_refused_by_its_path():
    assert refusal(Path("/"), InvalidModelFile).startswith("/: this is a folder")


@pytest.mark.parametrize("path_type", [Path, RegularAtFirst])
def test_pipe_is_refused_without_waiting(path_type, tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "a pipe" in refusal(path_type(tmp_path / "pipe.gguf"), InvalidModelFile)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/random"])
@pytest.mark.parametrize("path_type", [Path, RegularAtFirst])
def test_device_is_refused(device, path_type):
    assert "a device" in refusal(path_type(device), InvalidModelFile)


def test_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind("socket.gguf")
        assert "a socket" in refusal(tmp_path / "socket.gguf", InvalidModelFile)


def test_symlink_loop_is_refused(tmp_path):
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    assert os.strerror(errno.ELOOP) in refusal(tmp_path / "loop.gguf", StorageError)


def test_name_with_nul_is_refused(tmp_path):
    assert "null" in refusal(tmp_path / "a\0b", StorageError)


def test_name_too_long_is_refused(tmp_path):
    assert os.strerror(errno.ENAMETOOLONG) in refusal(tmp_path / ("n" * 300), StorageError)


def test_file_without_permission_is_refused(tmp_path):
    path = good_raw().write(tmp_path / "secret.gguf")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # the superuser may read everything
        os.seteuid(65534)
    try:
        message = refusal(path, StorageError)
    finally:
        os.seteuid(user)
    assert os.strerror(errno.EACCES) in message


def test_file_that_shrinks_meanwhile_is_refused(tmp_path):
    path = tmp_path / "shrinks.gguf"
    path.write_bytes(bytes(MIB))
    with open_model_file(path) as file:
        source = HeaderBytes(file, path)
        source.require(0, 8, "the start")
        os.truncate(path, 1000)
        with pytest.raises(InvalidModelFile, match=r"became shorter while the end was read.*limit 1048576"):
            source.require(0, MIB, "the end")


def test_read_error_is_a_storage_error(tmp_path):
    class FailingFile:
        def __init__(self, file):
            self.fileno = file.fileno

        def read(self, size):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = good_raw().write(tmp_path / "bad-disk.gguf")
    with open_model_file(path) as file, pytest.raises(StorageError, match=os.strerror(errno.EIO)):
        HeaderBytes(FailingFile(file), path).require(0, 4, "the magic number")
