"""What quantising loses: measured on tokens, written into report and manifest, refused above a limit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edge_rt.errors import QualityLoss
from edge_rt.export import export_model
from edge_rt.export.check.quality import MAX_KL, divergence, require_quality
from edge_rt.package.reader import open_package
from edge_rt.package.weights_info import Quality
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.hf_factory import write_hf_folder
from tests.helpers.native_profile import require_native
from tests.helpers.packages import listing


@pytest.fixture
def model(tmp_path):
    return write_llama_gguf(tmp_path / "m.gguf", weight_type="F32", embedding_type="F32")


@pytest.fixture
def folder(model, tmp_path):
    return write_hf_folder(tmp_path / "m", model)


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("pieces", [(3000,), (1, 1024, 1975), (1500, 1500)])
def test_the_divergence_is_that_of_whole_rows_of_logits(pieces):
    rng = np.random.default_rng(1)
    final, head = rng.normal(size=(7, 16)).astype(np.float32), rng.normal(size=(3000, 16)).astype(np.float32)
    # The largest logits come late, so that earlier sums have to be scaled.
    head[2990:] *= 4
    logits = final @ head.T
    found = (logits + rng.normal(size=logits.shape)).astype(np.float32)
    ids = rng.integers(0, 3000, 7).tolist()
    kl, ours, floats = divergence(final, np.split(head, np.cumsum(pieces)[:-1]), found, ids)
    p, q = log_softmax(logits), log_softmax(found)
    assert kl == pytest.approx((np.exp(p) * (p - q)).sum(axis=1).mean(), rel=1e-5)
    assert floats == pytest.approx(-p[np.arange(6), ids[1:]].mean(), rel=1e-5)
    assert ours == pytest.approx(-q[np.arange(6), ids[1:]].mean(), rel=1e-5)


def test_equal_predictions_do_not_diverge():
    rng = np.random.default_rng(2)
    final, head = rng.normal(size=(4, 8)).astype(np.float32), rng.normal(size=(50, 8)).astype(np.float32)
    kl, ours, floats = divergence(final, [head], final @ head.T, [1, 2, 3, 4])
    assert abs(kl) < 1e-9
    assert ours == pytest.approx(floats)


def quality(kl):
    return Quality(kl, 30.0, 20.0, 256, is_held_out=True)


def test_the_limit():
    assert require_quality(None, accept_loss=False) == ()
    assert require_quality(quality(MAX_KL), accept_loss=False) == ()
    with pytest.raises(QualityLoss, match=r"0\.6 nats a token, the limit 0\.5; perplexity 30 instead of 20"):
        require_quality(quality(0.6), accept_loss=False)
    (warning,) = require_quality(quality(0.6), accept_loss=True)
    assert "0.6 nats" in warning


def test_what_is_no_number_is_never_accepted():
    with pytest.raises(QualityLoss):
        require_quality(quality(float("nan")), accept_loss=True)


@pytest.mark.parametrize("profile", ["native", "portable"])
def test_report_and_manifest_say_what_was_lost(folder, model, tmp_path, profile):
    if profile == "native":
        require_native()
    report = export_model(folder, tmp_path / "p", profile=profile, weights="int8")
    package = open_package(tmp_path / "p")
    assert package.manifest.weights == report.weights
    assert json.loads(json.dumps(report.to_json()))["weights"]["quality"] == report.to_json()["quality"]
    assert (report.weights.choice, report.weights.size, report.weights.calibration) == ("int8", 0, "built-in")
    # A text of one sequence has no tokens to hold out.
    assert (report.quality.tokens, report.quality.is_held_out) == (256, False)
    assert 0 < report.quality.kl < 0.05
    assert report.quality.perplexity == pytest.approx(report.quality.float_perplexity, rel=0.05)
    classes = report.weights.classes
    assert list(classes) == ["attention", "feed_forward", "embedding", "head"]
    assert classes["attention"].types == {"Q8_0": 2 * (2 * 64 * 64 + 2 * 32 * 64)}
    assert classes["embedding"] == classes["head"]
    for found in classes.values():
        assert 8.4 < found.bits < 9.1
        assert 1e-6 < found.error < 1e-3


def test_more_bits_lose_less(folder, tmp_path):
    four = export_model(folder, tmp_path / "4", profile="portable")
    eight = export_model(folder, tmp_path / "8", profile="portable", weights="int8")
    assert four.weights.choice == "int4"
    assert four.quality.kl > 3 * eight.quality.kl
    assert four.weights.classes["attention"].error > 10 * eight.weights.classes["attention"].error


def test_without_a_text_only_the_weights_are_measured(folder, tmp_path):
    report = export_model(folder, tmp_path / "p", profile="portable", calibration=None)
    assert report.quality is None
    assert (report.weights.calibration, report.weights.calibration_tokens, report.weights.quality) == (None, 0, None)
    assert 1e-4 < report.weights.classes["attention"].error < 0.05


def test_floats_that_become_other_floats_lose_nothing_that_is_measured(folder, tmp_path):
    report = export_model(folder, tmp_path / "p", profile="portable", weights="f16", calibration=None)
    assert report.quality is None
    assert (report.weights.choice, report.weights.classes["head"].types) == ("f16", {"F16": 419 * 64})
    assert report.weights.classes["head"].error is None


def test_weights_of_the_checkpoint_are_not_mentioned(folder, model, tmp_path):
    for source in (folder, model.path):
        report = export_model(source, tmp_path / "p", profile="portable", weights="keep", force=True)
        assert (report.quality, report.weights) == (None, None)
        assert "weights" not in json.loads((tmp_path / "p" / "manifest.json").read_text())


def test_a_package_that_lost_too_much_is_refused_unless_that_is_accepted(model, tmp_path):
    # A sharp distribution: small errors change it much.
    sharp = {"model.norm.weight": np.full(64, 60, np.float32)}
    folder = write_hf_folder(tmp_path / "m", model, tensors=sharp)
    with pytest.raises(QualityLoss, match="accept the loss: edge-rt export --accept-loss"):
        export_model(folder, tmp_path / "out" / "p", profile="portable", activations="float")
    assert not (tmp_path / "out").exists() or listing(tmp_path / "out") == []
    report = export_model(folder, tmp_path / "p", profile="portable", activations="float", accept_loss=True)
    assert report.quality.kl > MAX_KL
    assert any("changes the model's predictions too much" in warning for warning in report.warnings)
    open_package(tmp_path / "p").verify()
