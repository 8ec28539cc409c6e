"""Gradients against differences of the log-likelihood, in float64, and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import UnsupportedModel
from edge_rt.export.families.llama_forward import LlamaForward
from edge_rt.export.families.llama_gradients import LlamaGradients
from tests.helpers.arrays import Arrays, random_arrays, source_of, tiny_config

TOKEN_IDS = [3, 1, 4, 1, 5, 12, 2, 6]
KINDS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
MODELS = {
    "plain": ({}, {}),
    "tied": ({"tied_embedding": True}, {}),
    "halves": ({}, {"has_halves": True}),
    "one head of keys": ({"num_kv_heads": 1}, {}),
    "a head of keys for each": ({"num_kv_heads": 4}, {"has_halves": True}),
    "wide heads": ({"head_dim": 6}, {}),
    "a window": ({"sliding_window": 3}, {}),
    "a window of one": ({"sliding_window": 1}, {}),
    "rope divisors": ({"rope_divisors": (1.0, 3.0)}, {}),
    "a tensor of rope factors": ({"tied_embedding": True}, {"factors": [1.0, 5.0]}),
}


def model_of(name):
    """Return the dimensions, weights and source of a model."""
    changes, rest = MODELS[name]
    config = tiny_config(**changes)
    arrays = random_arrays(config)
    if "factors" in rest:
        arrays["rope_freqs.weight"] = np.asarray(rest["factors"])
    return config, Arrays(arrays), source_of(arrays, has_halves=rest.get("has_halves", False))


def head_name(config):
    return "token_embd.weight" if config.tied_embedding else "output.weight"


def predictions(config, matrices, source):
    """Return the final rows and the logarithms of the probabilities, by the forward pass."""
    forward = LlamaForward(
        matrices, config, has_halves=source.has_halves, has_factors="rope_freqs.weight" in source.tensors,
        product=lambda x, name: x @ matrices.arrays[name].T, dtype=np.float64,
    )  # fmt: skip
    x = forward.embed(TOKEN_IDS)[None]
    for layer in range(config.num_layers):
        x = forward.layer(x, layer, forward.rope(len(TOKEN_IDS)))
    final = forward.norm(x[0], "output_norm.weight")
    logits = final @ matrices.arrays[head_name(config)].T
    return final, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def likelihood(config, matrices, source, labels):
    return float(predictions(config, matrices, source)[1][np.arange(len(labels)), labels].sum())


def difference(config, matrices, source, labels, name, direction, step=1e-5):
    """Return the derivative of the log-likelihood along a direction of a matrix."""
    ends = [
        likelihood(config, matrices.changed(name, sign * step * direction), source, labels) for sign in (1, -1)
    ]  # fmt: skip
    return (ends[0] - ends[1]) / (2 * step)


@pytest.mark.parametrize("model", MODELS)
def test_gradients_are_differences(model):
    config, matrices, source = model_of(model)
    found = LlamaGradients(matrices, source, config, dtype=np.float64).run(TOKEN_IDS)
    rng = np.random.default_rng(7)
    assert set(found.gradients) == {f"blk.{layer}.{kind}.weight" for layer in range(2) for kind in KINDS}
    for name, gradient in found.gradients.items():
        direction = rng.standard_normal(matrices.arrays[name].shape)
        expected = difference(config, matrices, source, found.labels, name, direction)
        assert float((gradient.T @ found.inputs[name] * direction).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_the_gradient_at_the_embeddings(model):
    config, matrices, source = model_of(model)
    found = LlamaGradients(matrices, source, config, dtype=np.float64).run(TOKEN_IDS)
    direction = np.random.default_rng(8).standard_normal(matrices.arrays["token_embd.weight"].shape)
    expected = difference(config, matrices, source, found.labels, "token_embd.weight", direction)
    along = float((found.embedding * direction[TOKEN_IDS]).sum())
    if config.tied_embedding:
        final, logs = predictions(config, matrices, source)
        at_logits = np.eye(config.vocab_size)[found.labels] - np.exp(logs)
        along += float((at_logits * (final @ direction.T)).sum())
    assert along == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("model", ["plain", "tied"])
def test_the_head(model):
    config, matrices, source = model_of(model)
    found = LlamaGradients(matrices, source, config, dtype=np.float64).run(TOKEN_IDS)
    final, logs = predictions(config, matrices, source)
    p = np.exp(logs)
    np.testing.assert_allclose(found.head, (p * (1 - p)).sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(found.inputs[head_name(config)], final, rtol=1e-9)


def test_labels_are_drawn_from_the_predictions():
    config, matrices, source = model_of("plain")
    p = np.exp(predictions(config, matrices, source)[1])
    runs = 400
    counts, sums = np.zeros_like(p), 0.0
    for seed in range(runs):
        found = LlamaGradients(matrices, source, config, seed=seed, dtype=np.float64).run(TOKEN_IDS)
        counts[np.arange(len(p)), found.labels] += 1
        sums = sums + found.embedding
    deviation = np.sqrt(p * (1 - p) / runs)
    assert (np.abs(counts / runs - p) <= 5 * deviation + 1e-9).all()
    # The mean of such gradients is 0, whatever the model.
    assert np.abs(sums / runs).max() < 0.2 * np.abs(found.embedding).max()


def test_the_same_seed_gives_the_same_labels_however_the_head_is_read():
    config, matrices, source = model_of("plain")
    runs = [
        LlamaGradients(Arrays(matrices.arrays, rows), source, config, dtype=np.float64).run(TOKEN_IDS)
        for rows in (3, 13, 13)
    ]
    np.testing.assert_array_equal(runs[1].labels, runs[2].labels)
    np.testing.assert_array_equal(runs[1].embedding, runs[2].embedding)
    np.testing.assert_allclose(runs[0].head, runs[1].head, rtol=1e-9)


@pytest.mark.parametrize("model", ["plain", "tied"])
def test_influences_are_means_over_tokens(model):
    config, matrices, source = model_of(model)
    found = LlamaGradients(matrices, source, config, dtype=np.float64).run(TOKEN_IDS)
    influences = LlamaGradients(matrices, source, config, dtype=np.float64).influences(TOKEN_IDS)
    assert set(influences) == {*found.gradients, head_name(config)}
    for name, gradient in found.gradients.items():
        inputs = found.inputs[name]
        expected = sum(np.mean(gradient[t] ** 2) * inputs[t] ** 2 for t in range(len(inputs))) / len(inputs)
        np.testing.assert_allclose(influences[name], expected, rtol=1e-9)
    inputs = found.inputs[head_name(config)]
    expected = (found.head[:, None] / config.vocab_size * inputs**2).mean(axis=0)
    np.testing.assert_allclose(influences[head_name(config)], expected, rtol=1e-9)


def test_an_error_changes_the_predictions_by_what_its_influence_says():
    """Half the squared error times the influence is the divergence, as a mean over errors and labels."""
    config, matrices, source = model_of("plain")
    name, size = "blk.0.ffn_up.weight", 1e-2
    runs = [LlamaGradients(matrices, source, config, seed=seed, dtype=np.float64) for seed in range(200)]
    influence = np.mean([run.influences(TOKEN_IDS)[name] for run in runs], axis=0)
    logs, rng = predictions(config, matrices, source)[1], np.random.default_rng(3)
    measured, expected = 0.0, 0.0
    for _ in range(60):
        error = rng.standard_normal(matrices.arrays[name].shape) * size
        changed = predictions(config, matrices.changed(name, error), source)[1]
        measured += float((np.exp(logs) * (logs - changed)).sum()) / len(TOKEN_IDS)
        expected += 0.5 * float((np.square(error) @ influence).sum())
    assert measured / expected == pytest.approx(1, abs=0.35)


def test_large_gates_and_float32():
    """The sigmoid of a large negative number is 0, without a warning."""
    config, matrices, source = model_of("plain")
    arrays = {
        name: (array * (1000 if "ffn_gate" in name else 1)).astype(np.float32)
        for name, array in matrices.arrays.items()
    }
    found = LlamaGradients(Arrays(arrays), source, config).influences(TOKEN_IDS)
    assert all(np.isfinite(influence).all() for influence in found.values())


def test_activations_that_are_not_finite_are_refused():
    config, matrices, source = model_of("plain")
    arrays = {name: array.astype(np.float32) for name, array in matrices.arrays.items()}
    arrays["blk.1.ffn_norm.weight"] = arrays["blk.1.ffn_norm.weight"] * np.float32(1e30)
    with pytest.raises(UnsupportedModel, match="too large for float32"):
        LlamaGradients(Arrays(arrays), source, config).influences(TOKEN_IDS)
