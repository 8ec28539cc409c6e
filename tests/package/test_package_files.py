"""Packages that are not opened: files that are missing, changed or elsewhere, and what is no package."""

from __future__ import annotations

import os
import re

import pytest

from edge_rt.errors import InvalidPackage, ModelNotFound, StorageError
from edge_rt.package.reader import is_package, open_package
from tests.helpers.packages import copied, edit_manifest, manifest_setter, replace_file
from tests.helpers.tiny_package import FILES, GRAPH, write


@pytest.fixture
def package(tmp_path):
    return write(tmp_path / "tiny")


class TestFilesRefused:
    @pytest.mark.parametrize("name", FILES)
    def test_missing(self, package, name):
        (package.path / name).unlink()
        with pytest.raises(InvalidPackage, match=re.escape(f"file '{name}' is missing")):
            open_package(package.path)

    @pytest.mark.parametrize("name", FILES)
    @pytest.mark.parametrize("change", [-1, 1])
    def test_wrong_size(self, package, name, change):
        data = (FILES[name] + b"x")[: len(FILES[name]) + change]
        (package.path / name).write_bytes(data)
        with pytest.raises(InvalidPackage, match=f"Found {len(data)} bytes, expected {len(FILES[name])}"):
            open_package(package.path)

    @pytest.mark.parametrize("name", FILES)
    def test_one_flipped_bit(self, package, name):
        data = bytearray(FILES[name])
        data[len(data) // 2] ^= 1 << 3
        (package.path / name).write_bytes(data)
        opened = open_package(package.path)
        with pytest.raises(InvalidPackage, match=re.escape(f"file '{name}' is damaged")):
            opened.verify()

    @pytest.mark.parametrize("name", FILES)
    def test_not_listed(self, package, name):
        edit_manifest(
            package.path, manifest_setter("files", {n: {"size": 0, "sha256": ""} for n in FILES if n != name})
        )
        with pytest.raises(InvalidPackage, match=rf"Not under 'files': \['{re.escape(name)}'\]"):
            open_package(package.path)

    @pytest.mark.parametrize(
        "name",
        [
            "../x",
            "a/../../x",
            "/etc/passwd",
            "a//b",
            "./a",
            "a/.",
            "C:\\x",
            "\\\\srv\\x",
            "a\\b",
            "",
            ".hidden",
            "a\n",
            "ä",
            # What not every system can have.
            "nul",
            "a/Con.onnx",
            "com1.bin",
            "a.",
        ],
    )
    def test_paths_that_leave_the_package(self, package, name):
        edit_manifest(package.path, lambda d: d["files"].update({name: {"size": 0, "sha256": ""}}))
        with pytest.raises(InvalidPackage, match="leaves the package"):
            open_package(package.path)

    def test_names_that_differ_in_case_alone(self, package):
        edit_manifest(package.path, lambda d: d["files"].update({"Model.onnx": {"size": 0, "sha256": ""}}))
        with pytest.raises(InvalidPackage, match="differ in case alone"):
            open_package(package.path)

    def test_a_link(self, package, tmp_path):
        (tmp_path / "elsewhere").write_bytes(FILES["model.onnx"])
        (package.path / "model.onnx").unlink()
        (package.path / "model.onnx").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(InvalidPackage, match="not a regular file"):
            open_package(package.path)

    def test_a_manifest_that_is_a_link(self, package, tmp_path):
        (package.path / "manifest.json").rename(tmp_path / "elsewhere")
        (package.path / "manifest.json").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(InvalidPackage, match=r"manifest\.json is a link"):
            open_package(package.path)

    def test_a_folder_in_between_that_is_a_link(self, package, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "x").write_bytes(b"")
        (package.path / "drafters").symlink_to(tmp_path / "elsewhere")
        edit_manifest(package.path, lambda d: d["files"].update({"drafters/x": {"size": 0, "sha256": ""}}))
        with pytest.raises(InvalidPackage, match="not a regular file"):
            open_package(package.path)

    def test_a_file_in_a_folder(self, package):
        (package.path / "drafters").mkdir()
        (package.path / "drafters" / "x").write_bytes(b"")
        edit_manifest(package.path, lambda d: d["files"].update({"drafters/x": {"size": 0, "sha256": ""}}))
        assert "drafters/x" in open_package(package.path).manifest.files

    def test_a_pipe(self, package):
        (package.path / "model.onnx").unlink()
        os.mkfifo(package.path / "model.onnx")
        with pytest.raises(InvalidPackage, match="not a regular file"):
            open_package(package.path)

    def test_a_graph_that_reads_another_file(self, small_package, tmp_path):
        package = copied(small_package, tmp_path)
        (tmp_path / "weights.bin").write_bytes((package / "weights.bin").read_bytes())
        graph = (package / "model.onnx").read_bytes()
        replace_file(package, "model.onnx", graph.replace(b"weights.bin", b"../ghts.bin"))
        with pytest.raises(InvalidPackage, match=r"model\.onnx: .* names '\.\./ghts\.bin'"):
            open_package(package)

    @pytest.mark.parametrize("name", ["model.ort", "graphs/model.onnx"])
    def test_a_graph_in_another_place_or_format(self, package, name):
        (package.path / "graphs").mkdir()
        (package.path / name).write_bytes(GRAPH)
        replace_file(package.path, name, GRAPH)
        edit_manifest(package.path, manifest_setter("segments.0.graph", name))
        with pytest.raises(InvalidPackage, match=f"an .onnx file at the top of the package. Found '{name}'"):
            open_package(package.path)

    def test_a_tokenizer_of_another_package_changes_the_id(self, package, tmp_path):
        other = write(tmp_path / "other", FILES | {"tokenizer.json": b"[]"})
        assert other.id != package.id
        (package.path / "tokenizer.json").write_bytes(b"[]")
        with pytest.raises(InvalidPackage, match="damaged"):
            open_package(package.path).verify()


class TestNoPackage:
    def test_nothing_there(self, tmp_path):
        with pytest.raises(ModelNotFound):
            open_package(tmp_path / "none")
        assert not is_package(tmp_path / "none")

    def test_a_folder_without_a_manifest(self, tmp_path):
        with pytest.raises(InvalidPackage, match="not a package"):
            open_package(tmp_path)

    def test_a_file(self, tmp_path):
        (tmp_path / "x.gguf").write_bytes(b"GGUF")
        with pytest.raises(InvalidPackage, match="not a package"):
            open_package(tmp_path / "x.gguf")

    def test_a_name_that_is_too_long(self, tmp_path):
        with pytest.raises(StorageError):
            open_package(tmp_path / ("x" * 300))
        assert not is_package(tmp_path / ("x" * 300))
