"""Writing a package: the destination is absent or complete, whatever fails and whoever else writes."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge_rt.errors import ConfigError, StorageError
from edge_rt.package.reader import is_package, open_package
from edge_rt.package.writer import PackageWriter
from tests.helpers.packages import copied, listing
from tests.helpers.tiny_package import FILES, FIRST, GRAPH, MANIFEST, NEW, write


def dead_pid():
    """Return the id of a process that has ended."""
    program = [sys.executable, "-c", "import os; print(os.getpid())"]
    return int(subprocess.run(program, capture_output=True, check=True).stdout)


@pytest.fixture
def package(tmp_path):
    return write(tmp_path / "tiny")


class TestWriter:
    def test_nothing_is_left_but_the_package(self, package, tmp_path):
        assert listing(tmp_path) == ["tiny"]
        assert listing(package.path) == sorted([*FILES, "manifest.json"])

    def test_an_exception_inside_leaves_nothing(self, tmp_path):

        def fail():
            with PackageWriter(tmp_path / "tiny") as writer:
                (writer.folder / "weights.bin").write_bytes(b"x")
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            fail()
        assert listing(tmp_path) == []

    def test_leaving_without_publish_leaves_nothing(self, tmp_path):
        with PackageWriter(tmp_path / "tiny") as writer:
            (writer.folder / "weights.bin").write_bytes(b"x")
        assert listing(tmp_path) == []

    def test_parents_are_made(self, tmp_path):
        assert is_package(write(tmp_path / "a" / "b" / "tiny").path)

    def test_an_existing_package_is_not_replaced(self, package):
        with pytest.raises(StorageError, match="exists already"):
            write(package.path, FILES | {"model.onnx": NEW})
        open_package(package.path).verify()
        assert package.file("model.onnx").read_bytes() == GRAPH

    def test_force_replaces(self, package, tmp_path):
        new = write(package.path, FILES | {"model.onnx": NEW}, force=True)
        assert (new.id != package.id, new.file("model.onnx").read_bytes()) == (True, NEW)
        assert listing(tmp_path) == ["tiny"]

    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("what", ["folder", "full", "file", "link"])
    def test_what_is_no_package_is_never_replaced(self, tmp_path, what, force):
        place = tmp_path / "precious"
        if what == "file":
            place.write_text("x")
        elif what == "link":
            place.symlink_to(tmp_path / "nowhere")
        else:
            place.mkdir()
            if what == "full":
                (place / "thesis.txt").write_text("x")
        with pytest.raises(StorageError, match="is not a package"):
            write(place, force=force)
        assert listing(tmp_path) == ["precious"]

    def test_force_replaces_a_link_to_a_package_not_the_package(self, package, tmp_path):
        (tmp_path / "link").symlink_to(package.path)
        write(tmp_path / "link", FILES | {"model.onnx": NEW}, force=True)
        assert listing(tmp_path) == ["link", "tiny"]
        assert package.file("model.onnx").read_bytes() == GRAPH

    def test_a_package_that_appears_meanwhile_is_not_replaced(self, tmp_path):
        with PackageWriter(tmp_path / "tiny") as writer:
            for name, data in FILES.items():
                (writer.folder / name).write_bytes(data)
            write(tmp_path / "tiny", FILES | {"model.onnx": FIRST})
            with pytest.raises(StorageError, match="exists already"):
                writer.publish(MANIFEST)
        assert open_package(tmp_path / "tiny").file("model.onnx").read_bytes() == FIRST
        assert listing(tmp_path) == ["tiny"]

    def test_with_force_the_later_of_two_writers_wins(self, tmp_path):
        with PackageWriter(tmp_path / "tiny", force=True) as slow:
            for name, data in FILES.items():
                (slow.folder / name).write_bytes(data)
            write(tmp_path / "tiny", FILES | {"model.onnx": FIRST}, force=True)
            slow.publish(MANIFEST)
        assert open_package(tmp_path / "tiny").file("model.onnx").read_bytes() == GRAPH
        assert listing(tmp_path) == ["tiny"]

    @pytest.mark.parametrize("failure", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
    def test_a_replacement_that_fails_half_way_puts_the_old_package_back(self, package, tmp_path, monkeypatch, failure):
        rename = Path.replace

        def fail_for_the_new_one(self, target):
            if self.name.endswith("-old") or self == package.path:
                return rename(self, target)
            assert listing(tmp_path) == sorted([self.name, self.name + "-old"])
            raise failure

        monkeypatch.setattr(Path, "replace", fail_for_the_new_one)
        with pytest.raises(StorageError if isinstance(failure, OSError) else KeyboardInterrupt):
            write(package.path, FILES | {"model.onnx": NEW}, force=True)
        assert listing(tmp_path) == ["tiny"]
        open_package(package.path).verify()
        assert open_package(package.path).id == package.id

    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("link", [False, True])
    def test_a_replacement_killed_half_way_is_undone_by_the_next_writer(self, package, tmp_path, force, link):
        left = tmp_path / f".tiny.part-{dead_pid()}-0123abcd"
        shutil.copytree(package.path, left)
        if link:
            (tmp_path / "elsewhere").mkdir()
            real = package.path.rename(tmp_path / "elsewhere" / "tiny")
            left.with_name(left.name + "-old").symlink_to(real)
        else:
            package.path.rename(left.with_name(left.name + "-old"))
        if force:
            with PackageWriter(tmp_path / "tiny", force=True):
                pass
        else:
            with pytest.raises(StorageError, match="exists already"):
                write(tmp_path / "tiny")
        assert listing(tmp_path) == (["elsewhere", "tiny"] if link else ["tiny"])
        assert open_package(tmp_path / "tiny").id == package.id

    def test_what_a_living_writer_moved_aside_is_left_to_it(self, package, tmp_path):
        old = f".tiny.part-{os.getpid()}-0123abcd-old"
        package.path.rename(tmp_path / old)
        write(tmp_path / "tiny")
        assert listing(tmp_path) == [old, "tiny"]

    def test_what_a_living_writer_could_not_remove_is_removed_by_the_next(self, package, tmp_path):
        shutil.copytree(package.path, tmp_path / f".tiny.part-{os.getpid()}-0123abcd-old")
        write(package.path, FILES | {"model.onnx": NEW}, force=True)
        assert listing(tmp_path) == ["tiny"]

    def test_a_replacement_killed_after_its_end_stays(self, package, tmp_path):
        write(tmp_path / f".tiny.part-{dead_pid()}-0123abcd-old", FILES | {"model.onnx": NEW})
        with PackageWriter(tmp_path / "tiny", force=True):
            pass
        assert listing(tmp_path) == ["tiny"]
        assert open_package(package.path).id == package.id

    @pytest.mark.parametrize("force", [False, True])
    def test_a_flush_that_fails_at_the_end_does_not_hide_the_package(self, tmp_path, monkeypatch, force):
        if force:
            write(tmp_path / "tiny")
        fsync = os.fsync

        def fail_for_the_parent(descriptor):
            if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
                raise OSError(errno.EIO, "Input/output error")
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", fail_for_the_parent)
        with pytest.raises(StorageError, match=r"tiny is in place, but may not survive .*: Input/output error\."):
            write(tmp_path / "tiny", FILES | {"model.onnx": NEW}, force=force)
        assert open_package(tmp_path / "tiny").file("model.onnx").read_bytes() == NEW
        assert listing(tmp_path) == ["tiny"]

    def test_a_failure_removes_the_parents_it_made(self, tmp_path):
        (tmp_path / "mine").mkdir()
        with PackageWriter(tmp_path / "mine" / "a" / "b" / "tiny"):
            assert listing(tmp_path / "mine" / "a" / "b") != []
        assert (listing(tmp_path), listing(tmp_path / "mine")) == (["mine"], [])

    def test_a_failure_leaves_parents_that_others_use(self, tmp_path):
        with PackageWriter(tmp_path / "a" / "b" / "tiny"):
            (tmp_path / "a" / "notes").write_text("x")
        assert listing(tmp_path / "a") == ["notes"]

    @pytest.mark.parametrize("name", ["x" * 300, "x" * 250, f"a/b/{'x' * 300}", f"a/{'x' * 300}/b"])
    def test_a_name_that_is_too_long(self, tmp_path, name):
        with pytest.raises(StorageError, match=r"cannot be written\. File name too long\."):
            write(tmp_path / name)
        assert listing(tmp_path) == []

    def test_the_next_writer_reclaims_what_killed_ones_left(self, tmp_path):
        pid = dead_pid()
        name = "ti[ny]*"
        left = [f".{name}.part-{pid}-0123abcd", f".{name}.part-{pid}-0123abcd-old"]
        kept = [f".{name}.part-{os.getpid()}-0123abcd", f".{name}.part-notes", f".other.part-{pid}-0123abcd"]
        for folder in (*left, *kept):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "weights.bin").write_bytes(b"x")
        write(tmp_path / name)
        assert listing(tmp_path) == sorted([name, *kept])

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_that_cannot_be_written(self, tmp_path):
        tmp_path.chmod(0o500)
        with pytest.raises(StorageError, match="cannot be written"):
            write(tmp_path / "tiny")

    def test_a_parent_that_is_a_file(self, tmp_path):
        (tmp_path / "file").write_text("x")
        with pytest.raises(StorageError):
            write(tmp_path / "file" / "tiny")

    def test_a_folder_removed_under_the_writer(self, tmp_path):
        with PackageWriter(tmp_path / "tiny") as writer:
            shutil.rmtree(writer.folder)
            with pytest.raises(StorageError, match="could not be written"):
                writer.publish(MANIFEST)
        assert listing(tmp_path) == []

    def test_copies_are_packages(self, package, tmp_path):
        open_package(copied(package.path, tmp_path)).verify()


def test_the_home_of_nobody_is_a_typed_error():
    with pytest.raises(ConfigError, match="cannot be resolved"):
        PackageWriter(Path("~nobody-has-this-name/package"))
