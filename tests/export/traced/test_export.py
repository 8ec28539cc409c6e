"""Exports of traced graphs, with a tracer in the place of transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edge_rt.errors import ConfigError, InvalidModelFile, InvalidPackage, StorageError, UnsupportedModel
from edge_rt.export import export_model, plan_export
from edge_rt.export.options import ExportOptions
from edge_rt.export.traced.export import STAGES, export_traced
from edge_rt.package.reader import open_package
from edge_rt.package.spec_modes import Drafts
from edge_rt.runtime.config import GenerationConfig
from tests.helpers.models import load_package
from tests.helpers.packages import listing
from tests.helpers.traced_factory import CONTEXT, TracedModel, tracer_of, write_folder

MODEL = TracedModel()
PROMPT = [3, 141, 59, 26, 200, 8]
GREEDY = GenerationConfig(max_tokens=64, temperature=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("checkpoint") / "small", MODEL)


def export(folder, out, model=MODEL, **options):
    tracing = {name: options.pop(name) for name in ("logits", "scheme", "appends", "has_plain_head") if name in options}
    return export_traced(folder, out, ExportOptions(**options), 0.0, tracer_of(model, **tracing))


@pytest.fixture(scope="module")
def package(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("packages") / "small"
    export(folder, out)
    return out


def test_answers_are_the_models_own(package):
    with load_package(package) as model:
        assert list(model.generate(PROMPT, GREEDY).token_ids) == MODEL.greedy(PROMPT, 64)


def test_a_prompt_in_chunks_and_a_chat_that_goes_back(package):
    prompt = [(7 + 31 * i) % 600 for i in range(50)]
    with load_package(package, prefill_chunk=8) as model:
        first = model.generate(prompt, GREEDY.with_options(max_tokens=6)).token_ids
        again = model.generate(prompt[:30], GREEDY.with_options(max_tokens=6)).token_ids
    assert list(first) == MODEL.greedy(prompt, 6)
    assert list(again) == MODEL.greedy(prompt[:30], 6)


def test_the_manifest_says_what_it_is(package):
    opened = open_package(package)
    manifest = opened.manifest
    assert (manifest.op_profile, manifest.weight_layout, manifest.activations) == ("traced", "initializers", "float")
    assert manifest.traced.exporter == "a tracer 1.0"
    assert manifest.decoder is None
    assert (manifest.model.family, manifest.model.context_length) == ("unheard_of", CONTEXT)
    assert listing(package) == ["manifest.json", "model.onnx", "tokenizer.json", "weights.bin"]
    opened.verify()


def test_stages_and_estimate(folder, tmp_path):
    events, estimates = [], []
    report = export(folder, tmp_path / "out", progress=events.append, on_estimate=estimates.append)
    assert tuple(dict.fromkeys(event.stage for event in events)) == STAGES
    assert estimates[0].disk_bytes >= report.disk_bytes
    assert report.check[0].relative_error < 1e-5


def test_nothing_is_drafted_unless_rows_are_exact(package):
    manifest = open_package(package).manifest
    assert manifest.drafts is (Drafts.CHAINS if manifest.traced.exact_rows > 1 else Drafts.NOTHING)


class TestRefused:
    """Nothing is published, and nothing is left behind."""

    @pytest.mark.parametrize("fault", [1e-2, np.nan])
    def test_other_logits_than_those_of_transformers(self, folder, tmp_path, fault):
        def spoilt(logits):
            logits[20, 5] += fault * np.abs(logits).max()
            return logits

        with pytest.raises(InvalidPackage, match="does not compute what transformers computes"):
            export(folder, tmp_path / "out", logits=spoilt)
        assert not list(tmp_path.iterdir())

    def test_weights_that_are_quantised_already(self, tmp_path):
        folder = write_folder(tmp_path / "packed", MODEL, quantization_config={"quant_method": "gptq"})
        with pytest.raises(UnsupportedModel, match="quantised already"):
            export(folder, tmp_path / "out")

    def test_a_file(self, tmp_path):
        (tmp_path / "model.gguf").write_bytes(b"GGUF")
        with pytest.raises(UnsupportedModel, match="not a folder of transformers"):
            export(tmp_path / "model.gguf", tmp_path / "out")

    def test_a_folder_without_a_tokenizer(self, tmp_path):
        folder = write_folder(tmp_path / "bare", MODEL)
        (folder / "tokenizer.json").unlink()
        with pytest.raises(UnsupportedModel, match=r"has no tokenizer\.json"):
            export(folder, tmp_path / "out")

    def test_a_weight_that_is_no_number(self, tmp_path):
        broken = TracedModel()
        broken.weights["embedding"][400, 3] = np.inf
        folder = write_folder(tmp_path / "broken", broken)
        with pytest.raises(InvalidModelFile, match="'embedding'"):
            export(folder, tmp_path / "out", broken)

    @pytest.mark.parametrize(
        ("config", "what"),
        [
            ({"model_type": "modernbert"}, "small is an encoder; edge-rt runs decoders"),
            ({"architectures": ["SomeForMaskedLM"]}, "an encoder; .* its class SomeForMaskedLM"),
            ({"model_type": "t5", "is_encoder_decoder": True}, "an encoder with a decoder"),
        ],
    )
    def test_an_encoder_before_torch_is_asked_for(self, tmp_path, config, what):
        folder = write_folder(tmp_path / "small", MODEL, **config)
        for via in ("transformers", None):
            with pytest.raises(UnsupportedModel, match=what):
                export_model(folder, tmp_path / "out", via=via)

    def test_a_destination_that_exists(self, folder, package):
        estimates = []
        with pytest.raises(StorageError, match="exists"):
            export(folder, package, on_estimate=estimates.append)
        assert not estimates
        export(folder, package, force=True)


class TestOptions:
    @pytest.mark.parametrize(
        ("given", "name"),
        [
            ({"profile": "native"}, "profile"),
            ({"activations": "int8"}, "activations"),
            ({"weights": "int4"}, "weights int4"),
            ({"size": 1 << 20}, "size"),
            ({"calibration": "text.txt"}, "calibration"),
            ({"kv": "f32"}, "kv"),
            ({"accept_loss": True}, "accept_loss"),
        ],
    )
    def test_those_that_are_not_carried_are_named(self, folder, tmp_path, given, name):
        with pytest.raises(ConfigError, match=f"does not carry these options: {name}"):
            export_model(folder, tmp_path / "out", via="transformers", **given)

    def test_an_unknown_exporter(self, folder, tmp_path):
        with pytest.raises(ConfigError, match="The exporter is unknown"):
            export_model(folder, tmp_path / "out", via="optimum")

    def test_a_dry_run(self, folder, tmp_path):
        with pytest.raises(ConfigError, match="cannot be shown beforehand"):
            plan_export(folder, tmp_path / "out", via="transformers")

    def test_without_one_the_error_names_the_way(self, folder, tmp_path):
        with pytest.raises(UnsupportedModel) as caught:
            export_model(folder, tmp_path / "out")
        assert "--via transformers" in caught.value.action


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda document: document.pop("traced"), "'manifest.traced' does not fit"),
        (lambda document: document["traced"].update(packed_bytes=-1), "'manifest.traced.packed_bytes'"),
        (lambda document: document["traced"]["passes"][0].update(token=-1), r"'manifest.traced.passes\[0\].token'"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(package, change, what):
    file = package / "manifest.json"
    before = file.read_bytes()
    document = json.loads(before)
    change(document)
    file.write_text(json.dumps(document), encoding="utf-8")
    try:
        with pytest.raises(InvalidPackage, match=what):
            open_package(package)
    finally:
        file.write_bytes(before)
