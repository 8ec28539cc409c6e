from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge_rt.errors import ConfigError, InvalidPackage, ModelNotFound, StorageError, UnsupportedModel, VersionMismatch
from edge_rt.package import (
    Manifest,
    ModelConfig,
    PackageWriter,
    Segment,
    SourceInfo,
    TokenizerInfo,
    is_package,
    open_package,
    sha256_file,
)
from tests.helpers.packages import copied, edit_manifest, listing, replace_file

# An ONNX model of one field, its producer's name.
GRAPH, FIRST, NEW = b"\x12\x05graph", b"\x12\x05first", b"\x12\x03new"
FILES = {
    "chat_template.jinja": b"{{ messages }}",
    "model.onnx": GRAPH,
    "tokenizer.json": b"{}",
    "weights.bin": bytes(range(256)),
}
MANIFEST = Manifest(
    format_version=1,
    graph_version=1,
    producer="edge-rt 0.1.0",
    model=ModelConfig(
        name="Tiny ünï",
        architecture="llama",
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=419,
        context_length=512,
        rms_norm_eps=1e-05,
        rope_theta=10000.0,
        rope_scaling="none",
        tied_embedding=True,
        num_parameters=100864,
    ),
    op_profile="portable",
    activations="int8",
    quantisation={"embedding": "Q8_0", "attention": "Q4_1"},
    kv_formats=("f32",),
    segments=(Segment("model", "model.onnx", 0, 2),),
    drafters=(),
    tokenizer=TokenizerInfo("tokenizer.json", None, (2, 0), False),
    chat_template="chat_template.jinja",
    source=SourceInfo("gguf", "tiny.gguf", "0" * 64, 86336),
    license=None,
    files={},
)

# The format: change these bytes only together with FORMAT_VERSION.
PINNED = """\
{
  "format": "edge-rt package",
  "format_version": 1,
  "graph_version": 1,
  "producer": "edge-rt 0.1.0",
  "model": {
    "name": "Tiny ünï",
    "architecture": "llama",
    "hidden_size": 64,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 419,
    "context_length": 512,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "rope_scaling": "none",
    "tied_embedding": true,
    "num_parameters": 100864
  },
  "op_profile": "portable",
  "activations": "int8",
  "quantisation": {
    "embedding": "Q8_0",
    "attention": "Q4_1"
  },
  "kv_formats": [
    "f32"
  ],
  "segments": [
    {
      "name": "model",
      "graph": "model.onnx",
      "first_layer": 0,
      "end_layer": 2
    }
  ],
  "drafters": [],
  "tokenizer": {
    "file": "tokenizer.json",
    "bos_token_id": null,
    "eos_token_ids": [
      2,
      0
    ],
    "add_bos": false
  },
  "chat_template": "chat_template.jinja",
  "source": {
    "kind": "gguf",
    "name": "tiny.gguf",
    "sha256": "0000000000000000000000000000000000000000000000000000000000000000",
    "size": 86336
  },
  "license": null,
  "files": {
    "chat_template.jinja": {
      "size": 14,
      "sha256": "f24189f08c85a1eb19a737306c3a13e85462ee33d964f28108d64a2485fa2171"
    },
    "model.onnx": {
      "size": 7,
      "sha256": "65d9a68b353ac6fcdf1fad00b7e7d6b6c2488aa23c87ab50ac72de5fc607adba"
    },
    "tokenizer.json": {
      "size": 2,
      "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    },
    "weights.bin": {
      "size": 256,
      "sha256": "40aff2e9d2d8922e47afd4648e6967497158785fbd1da870e7110266bf944880"
    }
  }
}
"""


def write(destination, files=None, *, force=False, manifest=MANIFEST):
    with PackageWriter(destination, force=force) as writer:
        for name, data in (files or FILES).items():
            (writer.folder / name).write_bytes(data)
        return writer.publish(manifest)


def dead_pid():
    """Return the id of a process that has ended."""
    program = [sys.executable, "-c", "import os; print(os.getpid())"]
    return int(subprocess.run(program, capture_output=True, check=True).stdout)


@pytest.fixture
def package(tmp_path):
    return write(tmp_path / "tiny")


class TestFormat:
    def test_the_bytes_of_the_manifest(self, package):
        assert (package.path / "manifest.json").read_bytes() == PINNED.encode()

    def test_reading_gives_what_was_written(self, package):
        found = open_package(package.path)
        assert found.manifest == MANIFEST.__class__(**{**vars(MANIFEST), "files": found.manifest.files})
        assert found.id == hashlib.sha256(PINNED.encode()).hexdigest()
        assert found.size_bytes == sum(map(len, FILES.values())) + len(PINNED.encode())
        assert found.file("model.onnx").read_bytes() == GRAPH
        assert is_package(package.path)
        found.verify()

    def test_the_same_input_gives_the_same_bytes(self, tmp_path):
        one, two = write(tmp_path / "one"), write(tmp_path / "two", dict(reversed(FILES.items())))
        assert one.id == two.id

    def test_whole_numbers_are_floats_where_floats_are_meant(self, package):
        edit_manifest(package.path, lambda document: document["model"].update(rope_theta=10000))
        assert open_package(package.path).manifest.model.rope_theta == 10000.0


def setter(path, value):
    def change(document):
        *parents, last = path.split(".")
        for part in parents:
            document = document[int(part) if part.isdigit() else part]
        if value is KeyError:
            del document[last]
        else:
            document[last] = value

    return change


class TestManifestRefused:
    """One cause, one error, one test."""

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "is not JSON"),
            (b"{", "is not JSON"),
            (b"\xff\xfe", "is not JSON"),
            (b"[" * 200_000, "is not JSON"),
            (b"[]", "is not an edge-rt package's"),
            (b"5", "is not an edge-rt package's"),
            (b"{}", "is not an edge-rt package's"),
            (b'{"format": "zip"}', "is not an edge-rt package's"),
            (b'{"format": "edge-rt package"}', "'format_version' is missing"),
            (b" " * ((16 << 20) + 1), "too large"),
        ],
    )
    def test_contents(self, package, data, message):
        (package.path / "manifest.json").write_bytes(data)
        with pytest.raises(InvalidPackage, match=message):
            open_package(package.path)

    @pytest.mark.parametrize("field", ["format_version", "graph_version"])
    @pytest.mark.parametrize("version", [0, 2, 10**30])
    def test_versions(self, package, field, version):
        edit_manifest(package.path, setter(field, version))
        with pytest.raises(VersionMismatch, match=f"{field} {version}, this edge-rt reads 1"):
            open_package(package.path)

    @pytest.mark.parametrize("version", [None, "1", True, 1.0])
    def test_versions_that_are_no_numbers(self, package, version):
        edit_manifest(package.path, setter("graph_version", version))
        with pytest.raises(InvalidPackage, match="'graph_version' is missing or no number"):
            open_package(package.path)

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            ("model", KeyError, r"Missing: \['model'\]"),
            ("model.head_dim", KeyError, r"Missing: \['head_dim'\]"),
            ("tokenizer.file", KeyError, r"Missing: \['file'\]"),
            ("library", "x.so", r"unknown: \['library'\]"),
            ("model.library", "x.so", r"unknown: \['library'\]"),
            ("model", [], "'manifest.model' must be an object"),
            ("model.name", 5, "'manifest.model.name' has the wrong type"),
            ("model.num_layers", "2", "'manifest.model.num_layers' has the wrong type"),
            ("model.num_layers", 2.0, "'manifest.model.num_layers' has the wrong type"),
            ("model.num_layers", True, "'manifest.model.num_layers' has the wrong type"),
            ("model.rope_theta", True, "'manifest.model.rope_theta' has the wrong type"),
            ("model.rope_theta", None, "'manifest.model.rope_theta' has the wrong type"),
            ("model.tied_embedding", 1, "'manifest.model.tied_embedding' has the wrong type"),
            ("kv_formats", "f32", "'manifest.kv_formats' has the wrong type"),
            ("kv_formats", [1], r"'manifest.kv_formats\[0\]' has the wrong type"),
            ("segments", [5], r"'manifest.segments\[0\]' must be an object"),
            ("quantisation", [], "'manifest.quantisation' has the wrong type"),
            ("quantisation.head", 5, "'manifest.quantisation.head' has the wrong type"),
            ("tokenizer.eos_token_ids", ["2"], r"eos_token_ids\[0\]' has the wrong type"),
            ("tokenizer.bos_token_id", "1", "bos_token_id' has the wrong type"),
            ("chat_template", 5, "'manifest.chat_template' has the wrong type"),
            ("files", [], "'manifest.files' has the wrong type"),
            ("files.x", 5, "'manifest.files.x' must be an object"),
        ],
    )
    def test_fields(self, package, path, value, message):
        edit_manifest(package.path, setter(path, value))
        with pytest.raises(InvalidPackage, match=message):
            open_package(package.path)

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            ("model.num_layers", 0, "num_layers' is out of range"),
            ("model.head_dim", -16, "head_dim' is out of range"),
            ("model.rms_norm_eps", float("nan"), "rms_norm_eps' is out of range"),
            ("model.rope_theta", float("inf"), "rope_theta' is out of range"),
            ("model.num_kv_heads", 3, "does not divide 'num_heads'"),
            ("segments", [], "the segments are not one"),
            ("segments.0.end_layer", 1, "the segments are not one"),
        ],
    )
    def test_values(self, package, path, value, message):
        def change(document):
            if path == "segments.0.end_layer":
                document["segments"][0]["end_layer"] = value
            else:
                setter(path, value)(document)

        edit_manifest(package.path, change)
        with pytest.raises(InvalidPackage, match=message):
            open_package(package.path)

    @pytest.mark.parametrize(
        ("path", "value"),
        [("op_profile", "neural"), ("kv_formats", ["int4"]), ("kv_formats", ["f16"]), ("kv_formats", [])],
    )
    def test_what_only_another_version_can_run(self, package, path, value):
        edit_manifest(package.path, setter(path, value))
        with pytest.raises(UnsupportedModel, match=path):
            open_package(package.path)

    @pytest.mark.parametrize("formats", [["f32"], ["int8", "f16", "f32"], ["f16", "of_a_later_version"]])
    def test_cache_formats_of_native_packages(self, package, formats):
        edit_manifest(package.path, setter("op_profile", "native"))
        edit_manifest(package.path, setter("kv_formats", formats))
        manifest = open_package(package.path).manifest
        assert (manifest.kv_formats, manifest.weight_layout) == (tuple(formats), "tile16")

    def test_the_layout_follows_from_the_profile(self, package):
        assert open_package(package.path).manifest.weight_layout == "matmulnbits"


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
        edit_manifest(package.path, setter("files", {n: {"size": 0, "sha256": ""} for n in FILES if n != name}))
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
        ],
    )
    def test_paths_that_leave_the_package(self, package, name):
        edit_manifest(package.path, lambda d: d["files"].update({name: {"size": 0, "sha256": ""}}))
        with pytest.raises(InvalidPackage, match="leaves the package"):
            open_package(package.path)

    def test_a_link(self, package, tmp_path):
        (tmp_path / "elsewhere").write_bytes(FILES["model.onnx"])
        (package.path / "model.onnx").unlink()
        (package.path / "model.onnx").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(InvalidPackage, match="not a regular file"):
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
        edit_manifest(package.path, setter("segments.0.graph", name))
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

    def test_a_hash_of_nothing(self, tmp_path):
        with pytest.raises(StorageError):
            sha256_file(tmp_path / "none")


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
        rename = Path.rename

        def fail_for_the_new_one(self, target):
            if self.name.endswith("-old") or self == package.path:
                return rename(self, target)
            assert listing(tmp_path) == sorted([self.name, self.name + "-old"])
            raise failure

        monkeypatch.setattr(Path, "rename", fail_for_the_new_one)
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


def test_the_manifest_of_an_export_reads_back(small_package):
    package = open_package(small_package)
    package.verify()
    assert package.manifest.to_bytes() == (small_package / "manifest.json").read_bytes()
    assert json.loads(package.manifest.to_bytes())["files"].keys() == {
        "chat_template.jinja", "model.onnx", "tokenizer.json", "weights.bin",
    }  # fmt: skip


def test_the_home_of_nobody_is_a_typed_error():
    with pytest.raises(ConfigError, match="means nothing here"):
        PackageWriter(Path("~nobody-has-this-name/package"))
