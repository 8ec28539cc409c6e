"""The bytes of a manifest, and manifests that are refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest

from edge_rt.errors import InvalidPackage, UnsupportedModel, VersionMismatch
from edge_rt.package.manifest import KV_FORMATS, OP_PROFILES, AdapterInfo, KeyCalibration, Rounding
from edge_rt.package.reader import is_package, open_package
from edge_rt.package.sampling import SamplingAdvice
from edge_rt.package.weights_info import Quality, TensorClass, TracedInfo, WeightsInfo
from tests.helpers.packages import edit_manifest, manifest_setter
from tests.helpers.tiny_package import DIMENSIONS, FILES, GRAPH, MANIFEST, write

# The format: change these bytes only together with FORMAT_VERSION.
PINNED = """\
{
  "format": "edge-rt package",
  "format_version": 3,
  "producer": "edge-rt 0.1.0",
  "num_parameters": 100864,
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
    "size": 86336,
    "adapters": []
  },
  "license": null,
  "decoder": {
    "name": "Tiny ünï",
    "family": "llama",
    "hidden_size": 64,
    "vocab_size": 419,
    "context_length": 512,
    "kinds": [
      {
        "attention": {
          "num_heads": 4,
          "num_kv_heads": 2,
          "head_dim": 16,
          "scale": 0.25,
          "rope": 0,
          "window": 0,
          "softcap": 0.0,
          "qk_norm": "none",
          "norm_after_rope": false,
          "has_qkv_bias": false,
          "has_output_bias": false,
          "has_sinks": false,
          "query_scaling": null
        },
        "feed_forward": {
          "size": 128,
          "activation": "silu",
          "is_gated": true,
          "has_bias": false
        },
        "has_pre_norms": true,
        "has_post_norms": false
      }
    ],
    "pattern": [
      0,
      0
    ],
    "ropes": [
      {
        "kind": "default",
        "base": 10000.0,
        "frequencies": [
          1.0,
          0.31622776601683794,
          0.1,
          0.03162277660168379,
          0.01,
          0.0031622776601683794,
          0.001,
          0.00031622776601683794
        ],
        "magnitude": 1.0,
        "long_frequencies": [],
        "short_context": 0
      }
    ],
    "norm_epsilon": 1e-05,
    "norm": "rms",
    "has_norm_bias": false,
    "is_tied": true,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "logit_softcap": 0.0
  },
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


LOSSES = {"source": "x", "tokens": 512, "bound": 0.0025, "formats": {}}


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

    def test_adapters_are_in_the_source(self, tmp_path):
        adapter = AdapterInfo("peft", "lora", 0.5, "b" * 64, 30, "mit", None)
        source = dataclasses.replace(MANIFEST.source, adapters=(adapter,))
        package = write(tmp_path / "tiny", manifest=dataclasses.replace(MANIFEST, source=source))
        document = json.loads((package.path / "manifest.json").read_bytes())
        assert document["source"]["adapters"] == [dataclasses.asdict(adapter)]
        assert open_package(package.path).manifest.source == source

    def test_whole_numbers_are_floats_where_floats_are_meant(self, package):
        edit_manifest(package.path, lambda document: document["decoder"]["ropes"][0].update(base=10000))
        assert open_package(package.path).manifest.decoder.ropes[0].base == 10000.0


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

    @pytest.mark.parametrize("version", [0, 2, 4, 10**10])
    def test_versions(self, package, version):
        edit_manifest(package.path, manifest_setter("format_version", version))
        with pytest.raises(VersionMismatch, match=f"format_version {version}, this edge-rt reads 3") as caught:
            open_package(package.path)
        assert caught.value.exit_code == 5

    @pytest.mark.parametrize(
        ("changes", "options"),
        [
            ({}, "--profile portable --weights keep"),
            ({"op_profile": "traced", "activations": "float"}, "--via transformers"),
            ({"activations": "float"}, "--profile portable --weights keep --activations float"),
            ({"weights": {"choice": "int8", "size": 0}}, "--profile portable --weights int8"),
            ({"weights": {"choice": "size", "size": 1000}}, "--profile portable --size 1000"),
            (
                {
                    "op_profile": "native",
                    "kv_formats": ["f16", "f32"],
                    "segments": [{"end_layer": 4}, {"end_layer": 6}, {"end_layer": 9}],
                },
                "--profile native --weights keep --exits 4,6",
            ),
            (
                {
                    "op_profile": "native",
                    "kv_formats": ["f16", "int8"],
                    "chosen": {"activations": "int8", "kv_type": "f16", "x": "y"},
                },
                "--profile native --weights keep --activations int8 --kv-type f16",
            ),
            (
                {"op_profile": "native", "kv_formats": ["f16"], "chosen": {"activations": "; rm", "kv_type": 5}},
                "--profile native --weights keep",
            ),
            (
                {"op_profile": "native", "kv_formats": ["int8", "f16"]},
                "--profile native --weights keep --kv-type int8",
            ),
            (
                {"op_profile": "native", "kv_formats": ["int8", "f16"], "kv_losses": {"tokens": 512}},
                "--profile native --weights keep",
            ),
            ({"op_profile": "native", "kv_formats": ["of_a_later_version"]}, "--profile native --weights keep"),
            ({"op_profile": ["x"], "weights": [], "segments": {}, "activations": {}}, "--weights keep"),
            ({"segments": ["x"], "weights": {"choice": [], "size": "1"}}, "--profile portable"),
            (
                {"source": {"name": "tiny.gguf", "adapters": ["x", {"name": "lora", "scale": 0.5}]}},
                "--profile portable --weights keep --adapter lora:0.5",
            ),
        ],
    )
    def test_a_package_of_another_version_names_the_command_that_makes_it_again(self, package, changes, options):
        edit_manifest(package.path, lambda document: document.update(format_version=1, **changes))
        with pytest.raises(VersionMismatch) as caught:
            open_package(package.path)
        command = f"edge-rt export -m tiny.gguf {options} --out {package.path} --force"
        assert caught.value.action == f"Make it again: {' '.join(command.split())}"

    def test_every_profile_is_read(self, package):
        for profile in OP_PROFILES:

            def change(document, profile=profile):
                document.update(op_profile=profile, kv_formats=[*KV_FORMATS[profile]])
                document.pop("traced", None)
                if profile == "traced":
                    document["traced"] = dataclasses.asdict(TracedInfo("transformers", 0, 0, 0, 0, ()))

            edit_manifest(package.path, change)
            assert open_package(package.path).manifest.op_profile == profile

    def test_only_traced_packages_do_without_a_decoder(self, package):
        def change(document):
            document["dimensions"] = dataclasses.asdict(DIMENSIONS)
            del document["decoder"]

        edit_manifest(package.path, change)
        with pytest.raises(InvalidPackage, match="no 'decoder', which only traced graphs do without"):
            open_package(package.path)
        traced = dataclasses.asdict(TracedInfo("transformers", 0, 0, 0, 0, ()))
        edit_manifest(package.path, lambda document: document.update(op_profile="traced", traced=traced))
        assert open_package(package.path).manifest.model == DIMENSIONS
        edit_manifest(package.path, manifest_setter("dimensions.num_kv_heads", 3))
        with pytest.raises(InvalidPackage, match=r"'manifest\.dimensions' contradicts itself"):
            open_package(package.path)
        edit_manifest(package.path, manifest_setter("dimensions", KeyError))
        with pytest.raises(InvalidPackage, match="either 'decoder' or 'dimensions'"):
            open_package(package.path)

    def test_calibration_stands_in_the_manifest_where_there_is_one(self, package):
        known = KeyCalibration(2048, "built-in")
        text = dataclasses.replace(MANIFEST, key_calibration=known).to_bytes().decode()
        assert '"key_calibration": {\n    "tokens": 2048,\n    "source": "built-in"\n  },\n  "decoder"' in text
        assert "key_calibration" not in MANIFEST.to_bytes().decode()

    @pytest.mark.parametrize("profile", ["of a later version", 5, None, [], {}])
    def test_a_profile_that_is_unknown(self, package, profile):
        edit_manifest(package.path, manifest_setter("op_profile", profile))
        with pytest.raises((UnsupportedModel, InvalidPackage), match="op_profile"):
            open_package(package.path)

    @pytest.mark.parametrize("version", [None, "1", True, 1.0])
    def test_versions_that_are_no_numbers(self, package, version):
        edit_manifest(package.path, manifest_setter("format_version", version))
        with pytest.raises(InvalidPackage, match="'format_version' is missing or not a number"):
            open_package(package.path)

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            ("num_parameters", KeyError, r"Missing: num_parameters;"),
            ("decoder.pattern", KeyError, r"Missing: pattern;"),
            ("tokenizer.file", KeyError, r"Missing: file;"),
            ("library", "x.so", r"unknown: library\."),
            ("decoder.library", "x.so", r"unknown: library\."),
            ("decoder", [], "'manifest.decoder' has the wrong type"),
            ("decoder.name", 5, "'manifest.decoder.name' has the wrong type"),
            ("decoder.hidden_size", "2", "'manifest.decoder.hidden_size' has the wrong type"),
            ("decoder.hidden_size", 2.0, "'manifest.decoder.hidden_size' has the wrong type"),
            ("decoder.hidden_size", True, "'manifest.decoder.hidden_size' has the wrong type"),
            ("decoder.norm_epsilon", None, "'manifest.decoder.norm_epsilon' has the wrong type"),
            ("decoder.is_tied", 1, "'manifest.decoder.is_tied' has the wrong type"),
            ("decoder.kinds.0.attention.window", 16.0, "attention.window' has the wrong type"),
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
            ("num_parameters", 0, "num_parameters' is out of range"),
            ("decoder.pattern", [], "there are no layers"),
            ("decoder.kinds", [], "a kind that is not there"),
            ("decoder.hidden_size", 0, "hidden_size is 0"),
            ("decoder.vocab_size", 1 << 40, "vocab_size is 1099511627776, must be 1 to 16777216"),
            ("decoder.context_length", 1, "no room for a prompt and an answer"),
            ("decoder.norm_epsilon", float("nan"), "no number of JSON"),
            ("decoder.ropes.0.base", float("inf"), "no number of JSON"),
            ("decoder.ropes.0.frequencies.3", float("nan"), "no number of JSON"),
            ("decoder.ropes.0.frequencies", [], "a rotation has no frequencies"),
            ("decoder.kinds.0.attention.head_dim", -16, "head_dim is -16"),
            ("decoder.kinds.0.attention.num_kv_heads", 3, "not a multiple of num_kv_heads, 3"),
            ("decoder.kinds.0.attention.window", -1, "a window is below 0"),
            ("decoder.kinds.0.attention.scale", float("inf"), "no number of JSON"),
            ("decoder.kinds.0.feed_forward.size", 0, "intermediate_size is 0"),
            ("decoder.logit_scale", float("nan"), "no number of JSON"),
            ("segments", [], "the segments are not the model"),
            ("segments.0.end_layer", 1, "the segments are not the model"),
            ("key_calibration", {"tokens": 0, "source": "x"}, "key_calibration.tokens' is out of range"),
            ("key_calibration", {"tokens": 1}, r"key_calibration' has the wrong fields\. Missing: source;"),
            ("key_calibration", {"tokens": "1", "source": "x"}, "key_calibration.tokens' has the wrong type"),
            ("key_calibration", [2048, "built-in"], "key_calibration' has the wrong type"),
            ("key_calibration", {"tokens": 2048, "source": "built-in"}, "portable has no 4-bit keys"),
            ("kv_losses", {**LOSSES, "tokens": 0}, "kv_losses.tokens' is out of range"),
            ("kv_losses", {**LOSSES, "bound": -1}, "kv_losses.bound' is out of range"),
            ("kv_losses", {**LOSSES, "formats": {"int8": {"kl": 0.1, "same_best": 1.1}}}, "int8.same_best' is out of"),
            ("kv_losses", {**LOSSES, "formats": {"int8": {"kl": None, "same_best": 1.0}}}, "int8.kl' has the wrong"),
            ("kv_losses", {**LOSSES, "formats": {"int8": {"kl": float("nan")}}}, "no number of JSON"),
            ("kv_losses", {"tokens": 512}, r"kv_losses' has the wrong fields\. Missing: bound, formats, source;"),
            *[("sampling", {"temperature": value}, "sampling") for value in (-1, 101, 10**400, "1", True)],
            *[("sampling", {"temperature": value}, "no number of JSON") for value in (float("nan"), float("inf"))],
            *[("sampling", {"top_k": value}, "sampling") for value in (-1, 1.5, 1 << 31)],
            *[("sampling", {"top_p": value}, "sampling") for value in (0, 1.1)],
            *[("sampling", {"min_p": value}, "sampling") for value in (-0.1, 1)],
            *[("sampling", {"repetition_penalty": value}, "sampling") for value in (0, 101)],
            ("sampling", {"typical_p": 0.5}, "sampling"),
        ],
    )
    def test_fields(self, package, path, value, message):
        edit_manifest(package.path, manifest_setter(path, value))
        with pytest.raises(InvalidPackage, match=message):
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
            document.update(op_profile="native", kv_formats=formats)

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


ROUNDING = Rounding(256, 0.0033, 0.0013, {"layer0.qkv": (0,), "head": (0, 1)})
"""Of a model whose inputs have two blocks."""


def test_what_is_said_of_rounding_is_read_as_it_was_written(tmp_path):
    manifest = dataclasses.replace(MANIFEST, op_profile="native", kv_formats=("f16",), rounding=ROUNDING)
    package = write(tmp_path / "p", manifest=manifest)
    assert open_package(package.path).manifest.rounding == ROUNDING
    assert package.manifest.activations_choice == "auto"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 0}, "rounding.tokens' is out of range"),
        ({"kl": float("1e400")}, "no number of JSON"),
        ({"int8_kl": "0"}, "rounding.int8_kl' has the wrong type"),
        ({"fine_blocks": [1]}, "rounding.fine_blocks' has the wrong type"),
        ({"fine_blocks": {"head": []}}, r"rounding.fine_blocks.head' is out of range. Found \[\]"),
        ({"fine_blocks": {"head": [1, 1]}}, r"Found \[1, 1\], wanted rising numbers below"),
        ({"fine_blocks": {"head": [-1]}}, r"Found \[-1\], wanted rising numbers below"),
        ({"fine_blocks": {"head": [0, 1 << 40]}}, "wanted rising numbers below"),
        ({"fine_blocks": {"head": [0.5]}}, r"fine_blocks.head\[0\]' has the wrong type"),
        *[
            ({"fine_blocks": {name: [0]}}, "fine_blocks' is out of range. Found '.*, wanted head, or layerN")
            for name in ("", "qkv", "layer0", "layer2.qkv", "layer0.other", "layer-1.qkv", "layerx.down", "\x1b[2J")
        ],
    ],
)
def test_what_is_wrong_with_rounding(tmp_path, change, message):
    manifest = dataclasses.replace(MANIFEST, op_profile="native", kv_formats=("f16",), rounding=ROUNDING)
    package = write(tmp_path / "p", manifest=manifest)
    document = json.loads((package.path / "manifest.json").read_text())
    document["rounding"].update(change)
    (package.path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(InvalidPackage, match=message):
        open_package(package.path)


@pytest.mark.parametrize("change", [{"op_profile": "portable", "kv_formats": ("f32",)}, {"activations": "float"}])
def test_rounding_is_of_native_packages_with_rounded_activations(tmp_path, change):
    native = {"op_profile": "native", "kv_formats": ("f16",), "rounding": ROUNDING}
    manifest = dataclasses.replace(MANIFEST, **{**native, **change})
    with pytest.raises(InvalidPackage, match=r"'manifest\.rounding' does not apply here"):
        open_package(write(tmp_path / "p", manifest=manifest).path)
