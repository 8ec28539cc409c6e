from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from edge_rt.errors import MemoryBudgetExceeded, StorageError
from edge_rt.export.estimate import ExportEstimate, require_room
from tests.helpers.converted_factory import write_converted_folder
from tests.helpers.export_apart import export_apart
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.hf_factory import write_hf_folder
from tests.helpers.native_profile import require_native

MODELS = {
    "small": {},
    "half": {"hidden": 512, "ffn": 3072, "layers": 2, "weight_type": "F16"},
    "calibration": {"layers": 12, "heads": 16, "kv_heads": 8, "head_dim": 64, "context": 2048},
    # Queries, keys and values of a pass are most of it.
    "wide": {"layers": 12, "heads": 64, "kv_heads": 1, "head_dim": 128, "ffn": 64, "context": 256},
    "vocabulary": {"hidden": 256, "layers": 1, "vocab": 20_000, "embedding_type": "Q8_0"},
}


QUANTISED = {
    "small": {},
    "wide_layers": {"hidden": 768, "ffn": 2304, "layers": 1, "heads": 12, "kv_heads": 4, "context": 2048},
    "long_vocabulary": {"hidden": 256, "layers": 1, "vocab": 12_000},
}


@pytest.fixture(params=["portable", "native"])
def profile(request):
    if request.param == "native":
        require_native()
    return request.param


def check_predictions(report, most=2.5):
    assert report["disk_bytes"] <= report["predicted_disk_bytes"] <= report["disk_bytes"] + (10 << 20)
    assert report["peak_bytes"] <= report["predicted_peak_bytes"] < most * report["peak_bytes"]
    assert not report["has_sympy"]


SLOW = {
    ("calibration", "native"),
    ("wide", "native"),
    ("small", "portable"),
    ("half", "portable"),
    ("vocabulary", "portable"),
}
"""Those that cost most beside what they add: pytest -m slow tests/export/test_estimate.py runs them."""


def marked(name, profile):
    return pytest.param(name, profile, marks=pytest.mark.slow if (name, profile) in SLOW else ())


@pytest.mark.parametrize(
    ("name", "profile"),
    [marked(name, profile) for name in MODELS for profile in ("portable", "native")],
    indirect=["profile"],
)
def test_predictions_hold(tmp_path, name, profile):
    write_llama_gguf(tmp_path / "m.gguf", **MODELS[name])
    check_predictions(export_apart(tmp_path / "m.gguf", tmp_path / "out", profile=profile))


@pytest.mark.parametrize("name", ["small", pytest.param("wide_layers", marks=pytest.mark.slow), "long_vocabulary"])
def test_predictions_hold_while_weights_are_quantised(tmp_path, name):
    require_native()
    model = write_llama_gguf(tmp_path / "m.gguf", weight_type="F32", embedding_type="F32", **QUANTISED[name])
    folder = write_hf_folder(tmp_path / "m", model, dtype="BF16")
    check_predictions(export_apart(folder, tmp_path / "out", profile="native"), most=2.5)


@pytest.mark.parametrize(("layout", "weights"), [("fp8", "keep"), ("nf4", "int4")])
def test_predictions_hold_while_weights_are_converted(tmp_path, layout, weights):
    require_native()
    model = write_llama_gguf(tmp_path / "m.gguf", weight_type="F32", embedding_type="F32", **QUANTISED["wide_layers"])
    write_converted_folder(tmp_path / "m", model, layout, also=("model.embed_tokens",))
    check_predictions(export_apart(tmp_path / "m", tmp_path / "out", profile="native", weights=weights))


@pytest.mark.model
def test_predictions_hold_for_a_real_model(smollm2_export, profile):
    check_predictions(json.loads((smollm2_export(profile) / "report.json").read_text()))


def test_a_disk_that_is_too_small(tmp_path):
    with pytest.raises(StorageError, match=f"needs 1152921.5 TB, .*B are free at {tmp_path}"):
        require_room(ExportEstimate(1 << 60, 1), tmp_path / "not" / "there")


def test_a_machine_that_is_too_small(tmp_path):
    with pytest.raises(MemoryBudgetExceeded, match=r"may need up to 1073741824\.00 GiB"):
        require_room(ExportEstimate(1, 1 << 60), tmp_path)


def test_a_destination_that_cannot_be_looked_at(tmp_path, monkeypatch):
    # Which versions of Python raise here differs, so the failing look is made.
    def fail(path):
        raise OSError(errno.ENAMETOOLONG, "File name too long")

    monkeypatch.setattr(Path, "is_dir", fail)
    with pytest.raises(StorageError, match=r"cannot be written\. File name too long\."):
        require_room(ExportEstimate(1, 1), tmp_path / ("x" * 300))


def test_only_what_is_needed_beyond_what_the_process_holds_has_to_be_available(tmp_path):
    require_room(ExportEstimate(1, 1 << 60, more_bytes=1), tmp_path)


def test_a_large_tokenizer_as_transformers_writes_it_is_counted(tmp_path):
    """Its JSON takes many times its size while it is read: known when it was read, not from the vocabulary."""
    model = write_llama_gguf(tmp_path / "m.gguf", weight_type="F32", embedding_type="F32", hidden=64, vocab=20_000)
    folder = write_hf_folder(tmp_path / "m", model, dtype="BF16")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=8))
    check_predictions(export_apart(folder, tmp_path / "out", profile="portable"), most=1.5)


def test_room_enough(tmp_path):
    require_room(ExportEstimate(1, 1), tmp_path)
