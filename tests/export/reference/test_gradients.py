"""Gradients against differences of the log-likelihood, in float64, and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import UnsupportedModel
from edge_rt.export.decoder.tensors import INPUT_OF, kind_of
from edge_rt.export.families.rope import default_rope, divided_rope
from edge_rt.export.reference.forward import DecoderForward
from edge_rt.export.reference.gradients import DecoderGradients
from edge_rt.package.layers import QueryScaling, ShortConv
from tests.helpers.arrays import Arrays, random_arrays, source_of, tiny_decoder

TOKEN_IDS = [3, 1, 4, 1, 5, 12, 2, 6]
HALVES = {"has_halves": True}
NORMED = {"attention": {"qk_norm": "head"}}
MODELS = {
    "plain": ({}, {}),
    "tied": ({"sizes": {"is_tied": True}}, {}),
    "halves": ({}, HALVES),
    "one head of keys": ({"sizes": {"num_kv_heads": 1}}, {}),
    "a head of keys for each": ({"sizes": {"num_kv_heads": 4}}, HALVES),
    "wide heads": ({"sizes": {"head_dim": 6}}, {}),
    "a window": ({"attention": {"window": 3}}, {}),
    "a window of one": ({"attention": {"window": 1}}, {}),
    "rope divisors": ({"ropes": (divided_rope(default_rope(100.0, 4), "llama3", (1.0, 3.0)),)}, {}),
    "half of the head rotated": ({"ropes": (default_rope(100.0, 2),)}, HALVES),
    "no rotation": ({"attention": {"rope": None}}, {}),
    "biases": (
        {"attention": {"has_qkv_bias": True, "has_output_bias": True}, "feed_forward": {"has_bias": True}}, HALVES,
    ),
    "norms of heads": (NORMED, HALVES),
    "norms of heads behind the rotation": ({"attention": {"qk_norm": "head", "norm_after_rope": True}}, HALVES),
    "norms of rows": ({"attention": {"qk_norm": "row"}}, HALVES),
    "norms behind sub-layers": ({"layer": {"has_post_norms": True}}, HALVES),
    "norms behind sub-layers alone": ({"layer": {"has_post_norms": True, "has_pre_norms": False}}, HALVES),
    "an offset of norms": ({"layer": {"has_post_norms": True}} | NORMED, HALVES | {"norm_offset": 1.0}),
    "layer norm": ({"norm": "layer", "has_norm_bias": True}, HALVES),
    "layer norm without bias": ({"norm": "layer"}, HALVES),
    "gelu": ({"feed_forward": {"activation": "gelu"}}, HALVES),
    "relu2": ({"feed_forward": {"activation": "relu2", "is_gated": False}}, HALVES),
    "soft-caps": ({"attention": {"softcap": 0.7}, "logit_softcap": 1.5}, HALVES),
    "sinks": ({"attention": {"has_sinks": True}}, HALVES),
    "factors": (
        {"attention": {"scale": 0.8}, "embedding_scale": 1.5, "residual_scale": 0.4, "logit_scale": 0.3}, HALVES,
    ),
    "a short convolution": ({"conv": ShortConv(3, has_bias=True)} | NORMED, HALVES),
    "gates": ({"attention": {"has_gate": True}} , HALVES),
    "gates, norms and limits": ({"attention": {"has_gate": True, "qk_norm": "head", "clip": 1.1}}, HALVES),
    "limits": ({"attention": {"clip": 0.8}}, HALVES),
    "growing queries": ({"attention": {"query_scaling": QueryScaling(0.7, 3)}}, HALVES),
}  # fmt: skip


def model_of(name):
    """Return the description, weights and source of a model."""
    changes, rest = MODELS[name]
    decoder = tiny_decoder(**changes)
    arrays = random_arrays(decoder)
    if rest.get("norm_offset"):
        arrays |= {key: array - 1.0 for key, array in arrays.items() if key.endswith("_norm.weight")}
    return decoder, Arrays(arrays), source_of(arrays, **rest)


def head_name(decoder):
    return "token_embd.weight" if decoder.is_tied else "output.weight"


def forward_logits(decoder, matrices, source):
    """Return the final rows, the products of the head, and the logits, by the forward pass."""
    forward = DecoderForward(
        matrices, source, decoder, product=lambda x, name: x @ matrices.arrays[name].T, dtype=np.float64
    )
    x = forward.embed(TOKEN_IDS)[None]
    for layer in range(decoder.num_layers):
        x = forward.layer(x, layer, forward.rope(len(TOKEN_IDS)))
    final = forward.norm(x[0], "output_norm.weight")
    products = final @ matrices.arrays[head_name(decoder)].T
    return final, forward.logits_of(products)


def predictions(decoder, matrices, source):
    """Return the final rows and the logarithms of the probabilities."""
    final, logits = forward_logits(decoder, matrices, source)
    return final, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def likelihood(decoder, matrices, source, labels):
    return float(predictions(decoder, matrices, source)[1][np.arange(len(labels)), labels].sum())


def difference(decoder, matrices, source, labels, name, direction, step=1e-5):
    """Return the derivative of the log-likelihood along a direction of a matrix."""
    ends = [
        likelihood(decoder, matrices.changed(name, sign * step * direction), source, labels) for sign in (1, -1)
    ]  # fmt: skip
    return (ends[0] - ends[1]) / (2 * step)


@pytest.mark.parametrize("model", MODELS)
def test_gradients_are_differences(model):
    decoder, matrices, source = model_of(model)
    found = DecoderGradients(matrices, source, decoder, dtype=np.float64).run(TOKEN_IDS)
    rng = np.random.default_rng(7)
    matrices_of_layers = {name for name in matrices.arrays if kind_of(name) in INPUT_OF and name.endswith("weight")}
    assert set(found.gradients) == matrices_of_layers
    for name, gradient in found.gradients.items():
        direction = rng.standard_normal(matrices.arrays[name].shape)
        expected = difference(decoder, matrices, source, found.labels, name, direction)
        assert float((gradient.T @ found.inputs[name] * direction).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_the_gradient_at_the_embeddings(model):
    decoder, matrices, source = model_of(model)
    found = DecoderGradients(matrices, source, decoder, dtype=np.float64).run(TOKEN_IDS)
    direction = np.random.default_rng(8).standard_normal(matrices.arrays["token_embd.weight"].shape)
    expected = difference(decoder, matrices, source, found.labels, "token_embd.weight", direction)
    along = float((found.embedding * direction[TOKEN_IDS]).sum()) * decoder.embedding_scale
    if decoder.is_tied:
        final, logs = predictions(decoder, matrices, source)
        at_logits = np.eye(decoder.vocab_size)[found.labels] - np.exp(logs)
        along += float((at_logits * (final @ direction.T)).sum())
    assert along == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("model", ["plain", "tied"])
def test_the_head(model):
    decoder, matrices, source = model_of(model)
    found = DecoderGradients(matrices, source, decoder, dtype=np.float64).run(TOKEN_IDS)
    final, logs = predictions(decoder, matrices, source)
    p = np.exp(logs)
    np.testing.assert_allclose(found.head, (p * (1 - p)).sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(found.inputs[head_name(decoder)], final, rtol=1e-9)


def test_labels_are_drawn_from_the_predictions():
    decoder, matrices, source = model_of("plain")
    p = np.exp(predictions(decoder, matrices, source)[1])
    runs = 400
    counts, sums = np.zeros_like(p), 0.0
    for seed in range(runs):
        found = DecoderGradients(matrices, source, decoder, seed=seed, dtype=np.float64).run(TOKEN_IDS)
        counts[np.arange(len(p)), found.labels] += 1
        sums = sums + found.embedding
    deviation = np.sqrt(p * (1 - p) / runs)
    assert (np.abs(counts / runs - p) <= 5 * deviation + 1e-9).all()
    # The mean of such gradients is 0, whatever the model.
    assert np.abs(sums / runs).max() < 0.2 * np.abs(found.embedding).max()


def test_the_same_seed_gives_the_same_labels_however_the_head_is_read():
    decoder, matrices, source = model_of("plain")
    runs = [
        DecoderGradients(Arrays(matrices.arrays, rows), source, decoder, dtype=np.float64).run(TOKEN_IDS)
        for rows in (3, 13, 13)
    ]
    np.testing.assert_array_equal(runs[1].labels, runs[2].labels)
    np.testing.assert_array_equal(runs[1].embedding, runs[2].embedding)
    np.testing.assert_allclose(runs[0].head, runs[1].head, rtol=1e-9)


@pytest.mark.parametrize("model", ["plain", "tied"])
def test_influences_are_means_over_tokens(model):
    decoder, matrices, source = model_of(model)
    found = DecoderGradients(matrices, source, decoder, dtype=np.float64).run(TOKEN_IDS)
    influences = DecoderGradients(matrices, source, decoder, dtype=np.float64).influences(TOKEN_IDS)
    assert set(influences) == {*found.gradients, head_name(decoder)}
    for name, gradient in found.gradients.items():
        inputs = found.inputs[name]
        expected = sum(np.mean(gradient[t] ** 2) * inputs[t] ** 2 for t in range(len(inputs))) / len(inputs)
        np.testing.assert_allclose(influences[name], expected, rtol=1e-9)
    inputs = found.inputs[head_name(decoder)]
    expected = (found.head[:, None] / decoder.vocab_size * inputs**2).mean(axis=0)
    np.testing.assert_allclose(influences[head_name(decoder)], expected, rtol=1e-9)


def test_an_error_changes_the_predictions_by_what_its_influence_says():
    """Half the squared error times the influence is the divergence, as a mean over errors and labels."""
    decoder, matrices, source = model_of("plain")
    name, size = "blk.0.ffn_up.weight", 1e-2
    runs = [DecoderGradients(matrices, source, decoder, seed=seed, dtype=np.float64) for seed in range(200)]
    influence = np.mean([run.influences(TOKEN_IDS)[name] for run in runs], axis=0)
    logs, rng = predictions(decoder, matrices, source)[1], np.random.default_rng(3)
    measured, expected = 0.0, 0.0
    for _ in range(60):
        error = rng.standard_normal(matrices.arrays[name].shape) * size
        changed = predictions(decoder, matrices.changed(name, error), source)[1]
        measured += float((np.exp(logs) * (logs - changed)).sum()) / len(TOKEN_IDS)
        expected += 0.5 * float((np.square(error) @ influence).sum())
    assert measured / expected == pytest.approx(1, abs=0.35)


def test_large_gates_and_float32():
    """The sigmoid of a large negative number is 0, without a warning."""
    decoder, matrices, source = model_of("plain")
    arrays = {
        name: (array * (1000 if "ffn_gate" in name else 1)).astype(np.float32)
        for name, array in matrices.arrays.items()
    }
    found = DecoderGradients(Arrays(arrays), source, decoder).influences(TOKEN_IDS)
    assert all(np.isfinite(influence).all() for influence in found.values())


def test_activations_that_are_not_finite_are_refused():
    decoder, matrices, source = model_of("plain")
    arrays = {name: array.astype(np.float32) for name, array in matrices.arrays.items()}
    arrays["blk.1.ffn_norm.weight"] = arrays["blk.1.ffn_norm.weight"] * np.float32(1e30)
    with pytest.raises(UnsupportedModel, match="too large for float32"):
        DecoderGradients(Arrays(arrays), source, decoder).influences(TOKEN_IDS)
