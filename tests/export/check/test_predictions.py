"""What a package predicts on a text, pass by pass, and how far predictions are from others."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.export.calibration.text import Calibration
from edge_rt.export.check.predictions import (
    KV_TOKENS,
    MAX_KV_LOSS,
    PASS_ROWS,
    Divergence,
    Predictor,
    measure_kv_losses,
    predicting_bytes,
    preferred_kv,
)
from edge_rt.package.manifest import KvLoss, KvLosses
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.graphs import Built
from tests.helpers.native_profile import require_native

IDS = [(7 + 91 * i) % 419 for i in range(2 * PASS_ROWS + 5)]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    require_native()
    folder = tmp_path_factory.mktemp("predictions")
    return Built(write_llama_gguf(folder / "m.gguf", context=1024).path, folder, "int8", profile="native")


def test_passes_predict_what_one_pass_over_the_whole_text_does(built):
    pieces = list(Predictor(built.graph, built.used).logits(IDS))
    assert [len(piece) for piece in pieces] == [PASS_ROWS, PASS_ROWS, 5]
    assert np.concatenate(pieces).tobytes() == built.run(IDS).tobytes()


def test_caches_of_two_formats_stand_beside_each_other(built):
    predictor, loss, equal = Predictor(built.graph, built.used), Divergence(), Divergence()
    for wide, narrow in zip(predictor.logits(IDS, "f16"), predictor.logits(IDS, "int4"), strict=True):
        loss.add(wide, narrow)
    for wide, same in zip(predictor.logits(IDS, "f16"), predictor.logits(IDS, "f16"), strict=True):
        equal.add(wide, same)
    assert loss.kl > 1e-7
    assert (equal.kl, equal.same_best, equal.tokens) == (0.0, 1.0, len(IDS))


def test_the_divergence_of_pieces_is_that_of_all_rows():
    draws = np.random.default_rng(0)
    reference, logits = draws.normal(size=(2, 9, 50)).astype(np.float32)
    p, q = (np.exp(rows.astype(np.float64)) for rows in (reference, logits))
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    found = Divergence()
    found.add(reference[:4], logits[:4])
    found.add(reference[4:], logits[4:])
    assert found.kl == pytest.approx((p * np.log(p / q)).sum(1).mean())
    assert found.same_best == np.mean(reference.argmax(1) == logits.argmax(1))


def test_the_memory_that_is_predicted_grows_with_caches_and_vocabulary(built):
    few, more = (predicting_bytes(built.used, 256, formats) for formats in (["f16"], ["f16", "int8"]))
    assert more > few > 4 * PASS_ROWS * built.used.vocab_size


def test_what_caches_lose_is_measured_against_one_in_f32_on_the_beginning_of_a_text(built):
    text = Calibration("own.txt", tuple((7 + 91 * i) % 419 for i in range(KV_TOKENS + 3)))
    events = []
    found = measure_kv_losses(built.graph, built.used, text, lambda done, total: events.append((done, total)))
    assert (found.source, found.tokens, found.bound) == ("own.txt", KV_TOKENS, MAX_KV_LOSS)
    assert events == [(begin, KV_TOKENS) for begin in range(0, KV_TOKENS, PASS_ROWS)]
    exact, *others = (
        np.concatenate(list(Predictor(built.graph, built.used).logits(text.token_ids[:KV_TOKENS], name)))
        for name in ("f32", *found.formats)
    )
    for loss, logits in zip(found.formats.values(), others, strict=True):
        expected = Divergence()
        expected.add(exact, logits)
        assert (loss.kl, loss.same_best) == pytest.approx((expected.kl, expected.same_best), rel=1e-2)
    assert found.formats.keys() == {"f16", "int8"}


@pytest.mark.parametrize(
    ("f16", "int8", "preferred"),
    [(0.0, 0.0025, "int8"), (0.0, 0.0026, "f16"), (0.1, 0.1025, "int8"), (0.1, 0.2, "f16"), (0.1, 0.05, "int8")],
)
def test_int8_is_preferred_if_it_loses_little_more_than_f16(f16, int8, preferred):
    losses = KvLosses("x", 512, 0.0025, {"f16": KvLoss(f16, 1.0), "int8": KvLoss(int8, 1.0)})
    assert preferred_kv(losses) == preferred
