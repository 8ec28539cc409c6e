"""The bytes of a manifest, and manifests that are refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest

from edge_rt.errors import InvalidPackage, UnsupportedModel, VersionMismatch
from edge_rt.package.manifest import GRAPH_VERSIONS, KV_FORMATS, AdapterInfo, KeyCalibration
from edge_rt.package.reader import is_package, open_package
from edge_rt.package.sampling import SamplingAdvice
from edge_rt.package.weights_info import Quality, TensorClass, TracedInfo, WeightsInfo
from tests.helpers.packages import edit_manifest, manifest_setter
from tests.helpers.tiny_package import FILES, GRAPH, MANIFEST, write

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

    def test_a_sliding_window_is_one_more_number(self, tmp_path):
        windowed = dataclasses.replace(MANIFEST.model, sliding_window=128)
        package = write(tmp_path / "tiny", manifest=dataclasses.replace(MANIFEST, model=windowed))
        pinned = PINNED.replace('"num_parameters": 100864', '"num_parameters": 100864,\n    "sliding_window": 128')
        assert (package.path / "manifest.json").read_bytes() == pinned.encode()
        assert package.manifest.model.layer_windows == (128, 128)
        assert open_package(package.path).manifest.model == windowed

    def test_adapters_are_one_more_field_of_the_source(self, tmp_path):
        adapter = AdapterInfo("peft", "lora", 0.5, "b" * 64, 30, "mit", None)
        source = dataclasses.replace(MANIFEST.source, adapters=(adapter,))
        package = write(tmp_path / "tiny", manifest=dataclasses.replace(MANIFEST, source=source))
        document = json.loads((package.path / "manifest.json").read_bytes())
        assert document["source"].pop("adapters") == [dataclasses.asdict(adapter)]
        assert document == json.loads(PINNED)
        assert open_package(package.path).manifest.source == source

    def test_a_package_that_says_nothing_of_windows_has_none(self, package):
        assert package.manifest.model.layer_windows == (0, 0)
        edit_manifest(package.path, manifest_setter("model.sliding_window", 0))
        assert open_package(package.path).manifest.model == MANIFEST.model

    def test_whole_numbers_are_floats_where_floats_are_meant(self, package):
        edit_manifest(package.path, lambda document: document["model"].update(rope_theta=10000))
        assert open_package(package.path).manifest.model.rope_theta == 10000.0


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
        edit_manifest(package.path, manifest_setter(field, version))
        with pytest.raises(VersionMismatch, match=f"{field} {version}, this edge-rt reads 1"):
            open_package(package.path)

    @pytest.mark.parametrize(("profile", "version"), GRAPH_VERSIONS.items())
    def test_every_profile_counts_its_graph_versions(self, package, profile, version):
        def change(found):
            def set_both(document):
                document.update(op_profile=profile, kv_formats=[*KV_FORMATS[profile]], graph_version=found)
                if profile == "traced":
                    document["traced"] = dataclasses.asdict(TracedInfo("transformers", 0, 0, 0, 0, ()))

            edit_manifest(package.path, set_both)

        change(version)
        assert open_package(package.path).manifest.op_profile == profile
        for other in (version - 1, version + 1):
            change(other)
            with pytest.raises(VersionMismatch) as caught:
                open_package(package.path)
            assert caught.value.exit_code == 5
            assert caught.value.what.endswith(f"the package has graph_version {other}, this edge-rt reads {version}.")
            way = "--via transformers" if profile == "traced" else f"--profile {profile}"
            command = f"edge-rt export -m SOURCE --out {package.path} {way} --force"
            assert caught.value.action.endswith(command)

    def test_windows_have_graph_versions_of_their_own(self, package):
        """A reader that knows of no windows must not take such a package for one without."""

        def change(found, window):
            def set_all(document):
                document.update(op_profile="native", kv_formats=["f16"], graph_version=found)
                document["model"]["sliding_window"] = window

            edit_manifest(package.path, set_all)

        change(3, 128)
        assert open_package(package.path).manifest.model.sliding_window == 128
        for found, window, ours in ((2, 128, 3), (3, 0, 2)):
            change(found, window)
            with pytest.raises(VersionMismatch, match=f"graph_version {found}, this edge-rt reads {ours}"):
                open_package(package.path)

    @pytest.mark.parametrize(("types", "ours"), [("Q4_1", 2), ("F16+Q8_0", 2), ("Q4_K", 5), ("Q4_0+Q6_K", 5)])
    def test_newer_types_have_a_graph_version_of_their_own(self, package, types, ours):
        """A reader whose operators do not know them must not try."""

        def change(found):
            def set_all(document):
                document.update(op_profile="native", kv_formats=["f16"], graph_version=found)
                document["quantisation"]["attention"] = types

            edit_manifest(package.path, set_all)

        change(ours)
        assert open_package(package.path).manifest.quantisation["attention"] == types
        change(7 - ours)
        with pytest.raises(VersionMismatch, match=f"graph_version {7 - ours}, this edge-rt reads {ours}"):
            open_package(package.path)

    def test_calibrated_keys_have_a_graph_version_of_their_own(self, package):
        """A reader that knows of no such constants would not give them to attention's other formats either."""

        def change(found, calibration, window=0, profile="native"):
            def set_all(document):
                document.update(op_profile=profile, kv_formats=["f16" if profile == "native" else "f32"])
                document.update(graph_version=found, key_calibration=calibration)
                document["model"]["sliding_window"] = window

            edit_manifest(package.path, set_all)

        calibration = {"tokens": 2048, "source": "built-in"}
        for window in (0, 128):
            change(4, calibration, window)
            assert open_package(package.path).manifest.key_calibration == KeyCalibration(2048, "built-in")
        change(2, None)
        assert open_package(package.path).manifest.key_calibration is None
        for found, given, window, ours in ((4, None, 0, 2), (4, None, 128, 3), (2, calibration, 0, 4)):
            change(found, given, window)
            with pytest.raises(VersionMismatch, match=f"graph_version {found}, this edge-rt reads {ours}"):
                open_package(package.path)
        for wrong, message in (
            ({"tokens": 0, "source": "x"}, "key_calibration.tokens' is out of range"),
            ({"tokens": 1}, r"key_calibration' has the wrong fields\. Missing: source;"),
            ({"tokens": "1", "source": "x"}, "key_calibration.tokens' has the wrong type"),
            ([2048, "built-in"], "key_calibration' has the wrong type"),
        ):
            change(4, wrong)
            with pytest.raises(InvalidPackage, match=message):
                open_package(package.path)
        change(1, calibration, profile="portable")
        with pytest.raises(InvalidPackage, match="portable has no 4-bit keys"):
            open_package(package.path)

    def test_calibration_stands_in_the_manifest_where_there_is_one(self, package):
        known = KeyCalibration(2048, "built-in")
        text = dataclasses.replace(MANIFEST, key_calibration=known).to_bytes().decode()
        assert '"key_calibration": {\n    "tokens": 2048,\n    "source": "built-in"\n  },\n  "files"' in text
        assert "key_calibration" not in MANIFEST.to_bytes().decode()

    @pytest.mark.parametrize("profile", ["of a later version", 5, None, [], {}])
    def test_the_graph_version_of_a_profile_that_is_unknown(self, package, profile):
        edit_manifest(package.path, lambda document: document.update(op_profile=profile, graph_version=9))
        with pytest.raises((UnsupportedModel, InvalidPackage), match="op_profile"):
            open_package(package.path)

    @pytest.mark.parametrize("version", [None, "1", True, 1.0])
    def test_versions_that_are_no_numbers(self, package, version):
        edit_manifest(package.path, manifest_setter("graph_version", version))
        with pytest.raises(InvalidPackage, match="'graph_version' is missing or not a number"):
            open_package(package.path)

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            ("model", KeyError, r"Missing: model;"),
            ("model.head_dim", KeyError, r"Missing: head_dim;"),
            ("tokenizer.file", KeyError, r"Missing: file;"),
            ("library", "x.so", r"unknown: library\."),
            ("model.library", "x.so", r"unknown: library\."),
            ("model", [], "'manifest.model' must be an object"),
            ("model.name", 5, "'manifest.model.name' has the wrong type"),
            ("model.num_layers", "2", "'manifest.model.num_layers' has the wrong type"),
            ("model.num_layers", 2.0, "'manifest.model.num_layers' has the wrong type"),
            ("model.num_layers", True, "'manifest.model.num_layers' has the wrong type"),
            ("model.rope_theta", True, "'manifest.model.rope_theta' has the wrong type"),
            ("model.rope_theta", None, "'manifest.model.rope_theta' has the wrong type"),
            ("model.tied_embedding", 1, "'manifest.model.tied_embedding' has the wrong type"),
            ("model.sliding_window", 16.0, "'manifest.model.sliding_window' has the wrong type"),
            ("kv_formats", "f32", "'manifest.kv_formats' has the wrong type"),
            ("kv_formats", [1], r"'manifest.kv_formats\[0\]' has the wrong type"),
            ("segments", [5], r"'manifest.segments\[0\]' must be an object"),
            ("quantisation", [], "'manifest.quantisation' has the wrong type"),
            ("quantisation", "Q8_0", "'manifest.quantisation' has the wrong type"),
            ("files", "", "'manifest.files' has the wrong type"),
            ("quantisation.head", 5, "'manifest.quantisation.head' has the wrong type"),
            ("tokenizer.eos_token_ids", ["2"], r"eos_token_ids\[0\]' has the wrong type"),
            ("tokenizer.bos_token_id", "1", "bos_token_id' has the wrong type"),
            ("chat_template", 5, "'manifest.chat_template' has the wrong type"),
            ("tool_template", 5, "'manifest.tool_template' has the wrong type"),
            ("files", [], "'manifest.files' has the wrong type"),
            ("files.x", 5, "'manifest.files.x' must be an object"),
        ],
    )
    def test_fields(self, package, path, value, message):
        edit_manifest(package.path, manifest_setter(path, value))
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
            ("model.sliding_window", -1, "sliding_window' is out of range. Found -1, wanted 0 or more"),
            ("segments", [], "the segments are not the model"),
            ("segments.0.end_layer", 1, "the segments are not the model"),
        ],
    )
    def test_values(self, package, path, value, message):
        def change(document):
            if path == "segments.0.end_layer":
                document["segments"][0]["end_layer"] = value
            else:
                manifest_setter(path, value)(document)

        edit_manifest(package.path, change)
        with pytest.raises(InvalidPackage, match=f"{message}|no number of JSON"):
            open_package(package.path)

    @pytest.mark.parametrize(
        ("path", "value"),
        [("op_profile", "neural"), ("kv_formats", ["int4"]), ("kv_formats", ["f16"]), ("kv_formats", [])],
    )
    def test_what_only_another_version_can_run(self, package, path, value):
        edit_manifest(package.path, manifest_setter(path, value))
        with pytest.raises(UnsupportedModel, match=path):
            open_package(package.path)

    @pytest.mark.parametrize("formats", [["f32"], ["int8", "f16", "f32"], ["f16", "of_a_later_version"]])
    def test_cache_formats_of_native_packages(self, package, formats):
        def change(document):
            document.update(op_profile="native", graph_version=GRAPH_VERSIONS["native"], kv_formats=formats)

        edit_manifest(package.path, change)
        manifest = open_package(package.path).manifest
        assert (manifest.kv_formats, manifest.weight_layout) == (tuple(formats), "tile16")

    def test_the_layout_follows_from_the_profile(self, package):
        assert open_package(package.path).manifest.weight_layout == "matmulnbits"


def test_the_manifest_of_an_export_reads_back(small_package):
    package = open_package(small_package)
    package.verify()
    assert package.manifest.to_bytes() == (small_package / "manifest.json").read_bytes()
    assert json.loads(package.manifest.to_bytes())["files"].keys() == {
        "chat_template.jinja", "model.onnx", "tokenizer.json", "weights.bin",
    }  # fmt: skip


class TestSampling:
    ADVICE = SamplingAdvice(temperature=0.2, top_p=0.9, repetition_penalty=1.1)

    def test_it_stands_in_the_manifest_as_far_as_it_is_given(self, tmp_path):
        package = write(tmp_path / "p", manifest=dataclasses.replace(MANIFEST, sampling=self.ADVICE))
        document = json.loads((package.path / "manifest.json").read_text())
        assert document["sampling"] == {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1}
        assert open_package(package.path).manifest.sampling == self.ADVICE

    def test_without_it_the_field_is_left_out(self, tmp_path):
        package = write(tmp_path / "p")
        assert "sampling" not in json.loads((package.path / "manifest.json").read_text())
        assert package.manifest.sampling is None

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *[("temperature", value) for value in (-1, 101, float("nan"), float("inf"), 10**400, "1", True)],
            *[("top_k", value) for value in (-1, 1.5, 1 << 31)],
            *[("top_p", value) for value in (0, 1.1)],
            *[("min_p", value) for value in (-0.1, 1)],
            *[("repetition_penalty", value) for value in (0, 101)],
            ("typical_p", 0.5),
        ],
    )
    def test_a_value_that_is_wrong_is_refused(self, name, value, tmp_path):
        package = write(tmp_path / "p")
        edit_manifest(package.path, manifest_setter("sampling", {name: value}))
        with pytest.raises(InvalidPackage, match=r"sampling|no number of JSON"):
            open_package(package.path)


CLASS = TensorClass({"IQ4_XS": 900, "Q6_K": 100}, 4.7, 0.004)
QUALITY = Quality(0.02, 21.0, 20.5, 256, is_held_out=True)
WEIGHTS = WeightsInfo("int4", 0, "built-in", 2048, {"attention": CLASS, "head": TensorClass({}, 8.5, None)}, QUALITY)


@pytest.mark.parametrize("info", [WEIGHTS, dataclasses.replace(WEIGHTS, calibration=None, quality=None, size=1 << 20)])
def test_what_is_said_of_weights_is_read_as_it_was_written(tmp_path, info):
    write(tmp_path / "p", manifest=dataclasses.replace(MANIFEST, weights=info))
    assert open_package(tmp_path / "p").manifest.weights == info


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda weights: weights.update(size="much"), "weights.size' has the wrong type"),
        (lambda weights: weights.update(size=-1), "weights.size' is out of range"),
        (lambda weights: weights.update(more=1), "weights' has the wrong fields"),
        (lambda weights: weights.pop("choice"), "weights' has the wrong fields"),
        (lambda weights: weights.update(classes=[]), "weights.classes' has the wrong type"),
        (lambda weights: weights["classes"]["head"].update(bits=-1.0), "classes.head.bits' is out of range"),
        (lambda weights: weights["classes"]["head"].update(error=float("inf")), "head.error' is out of range"),
        (lambda weights: weights["classes"]["attention"]["types"].update(Q6_K=-1), "types.Q6_K' is out of range"),
        (lambda weights: weights["quality"].update(kl=float("nan")), "quality.kl' is out of range"),
        (lambda weights: weights["quality"].update(tokens=True), "quality.tokens' has the wrong type"),
    ],
)
def test_what_is_said_of_weights_is_checked(tmp_path, change, where):
    write(tmp_path / "p", manifest=dataclasses.replace(MANIFEST, weights=WEIGHTS))
    edit_manifest(tmp_path / "p", lambda document: (change(document["weights"]), document)[1])
    with pytest.raises(InvalidPackage, match=f"{where}|no number of JSON"):
        open_package(tmp_path / "p")
