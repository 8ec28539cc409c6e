"""The reference itself, against a forward that shares no line with it: loops over the test's own weights."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest

from edge_rt.export.opening import open_checkpoint
from edge_rt.export.sources.model_file import TensorReader
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.graphs import reference_of

TOKEN_IDS = [5, 17, 300, 17, 99, 4]


def slow_forward(model, token_ids, window=1000):
    """Return float64 logits ``[len(token_ids), vocabulary]``, one position and head at a time."""
    config, weights = model.config, {name: w.astype(np.float64) for name, w in model.weights.items()}
    heads, kv_heads, size = config["heads"], config["kv_heads"], config["head_dim"]

    def norm(vector, weight):
        return vector / math.sqrt(float(np.dot(vector, vector)) / len(vector) + config["rms_norm_eps"]) * weight

    def rotate(head, position):
        turned = head.copy()
        for pair in range(size // 2):
            angle = position * config["rope_theta"] ** (-2 * pair / size)
            if "rope_freqs.weight" in weights:
                angle /= weights["rope_freqs.weight"][pair]
            a, b = head[2 * pair], head[2 * pair + 1]
            turned[2 * pair] = a * math.cos(angle) - b * math.sin(angle)
            turned[2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
        return turned

    rows = [weights["token_embd.weight"][token] for token in token_ids]
    for layer in range(config["layers"]):
        keys, values, attended = [], [], []
        for position, row in enumerate(rows):
            x = norm(row, weights[f"blk.{layer}.attn_norm.weight"])
            q, k, v = ((weights[f"blk.{layer}.attn_{kind}.weight"] @ x).reshape(-1, size) for kind in ("q", "k", "v"))
            keys.append([rotate(head, position) for head in k])
            values.append(v)
            first = max(0, len(keys) - window)
            outputs = []
            for head in range(heads):
                own, query = head * kv_heads // heads, rotate(q[head], position)
                scores = np.asarray([float(query @ key[own]) / math.sqrt(size) for key in keys[first:]])
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                outputs.append(sum(share * value[own] for share, value in zip(shares, values[first:], strict=True)))
            attended.append(weights[f"blk.{layer}.attn_output.weight"] @ np.concatenate(outputs))
        rows = [row + output for row, output in zip(rows, attended, strict=True)]
        for position, row in enumerate(rows):
            x = norm(row, weights[f"blk.{layer}.ffn_norm.weight"])
            gate, up = (weights[f"blk.{layer}.ffn_{kind}.weight"] @ x for kind in ("gate", "up"))
            rows[position] = row + weights[f"blk.{layer}.ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * up)
    head = weights.get("output.weight", weights["token_embd.weight"])
    return np.stack([head @ norm(row, weights["output_norm.weight"]) for row in rows])


@pytest.mark.parametrize(
    "options",
    [{}, {"tied": False, "kv_heads": 4}, {"head_dim": 32, "kv_heads": 1}, {"rope_freqs": True}, {"weight_type": "F16"}],
)
def test_logits(tmp_path, options):
    model = write_llama_gguf(tmp_path / "m.gguf", **options)
    checkpoint = open_checkpoint(model.path)
    with TensorReader([model.path]) as stream:
        reference = reference_of(stream, *checkpoint, dtype=np.float64, cache=True)
        found = reference.logits(TOKEN_IDS)
        again = reference.logits(TOKEN_IDS[:2])
    expected = slow_forward(model, TOKEN_IDS)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    np.testing.assert_allclose(again, expected[:2], atol=1e-9)


@pytest.mark.parametrize("window", [1, 2, 5, 6])
def test_logits_of_a_sliding_window(tmp_path, window):
    model = write_llama_gguf(tmp_path / "m.gguf", extra_metadata={"llama.attention.sliding_window": window})
    checkpoint = open_checkpoint(model.path)
    with TensorReader([model.path]) as stream:
        found = reference_of(stream, *checkpoint, dtype=np.float64).logits(TOKEN_IDS)
    np.testing.assert_allclose(found, slow_forward(model, TOKEN_IDS, window), atol=1e-9)
    # Six tokens: a window of as many hides nothing.
    assert np.allclose(found, slow_forward(model, TOKEN_IDS)) == (window == 6)


def test_float32_is_only_rounder(tmp_path):
    model = write_llama_gguf(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(model.path)
    with TensorReader([model.path]) as stream:
        found = reference_of(stream, *checkpoint).logits(TOKEN_IDS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, slow_forward(model, TOKEN_IDS), atol=1e-5)


class TestSteps:
    """Every step by itself, from what a graph handed to it."""

    @pytest.fixture
    def judge(self, tmp_path):
        def make(**options):
            model = write_llama_gguf(tmp_path / "m.gguf", **options)
            checkpoint = open_checkpoint(model.path)
            stack.enter_context(stream := TensorReader([model.path]))
            return reference_of(stream, *checkpoint, dtype=np.float64, cache=True)

        with contextlib.ExitStack() as stack:
            yield make

    def own_streams(self, judge):
        """Streams of the reference itself: without rounding, each step goes on from the last."""
        streams = []
        for _ in range(3):
            filled = [*streams, *[np.zeros((len(TOKEN_IDS), 64))] * (3 - len(streams))]
            streams.append(judge.logits_and_steps(TOKEN_IDS, filled)[1][len(streams)].exact)
        return streams

    def test_exact_steps_from_exact_streams_are_the_model(self, judge):
        reference = judge()
        logits, steps = reference.logits_and_steps(TOKEN_IDS, self.own_streams(reference))
        np.testing.assert_allclose(steps[-1].exact, logits, atol=1e-12)
        np.testing.assert_allclose(logits, reference.logits(TOKEN_IDS), atol=1e-12)
        assert [step.exact.shape for step in steps] == [(6, 64)] * 3 + [(6, 419)]

    def test_rounding_changes_every_step_but_the_embedding(self, judge):
        reference = judge()
        steps = reference.logits_and_steps(TOKEN_IDS, self.own_streams(reference))[1]
        changes = [np.abs(step.exact - step.rounded).std() / step.exact.std() for step in steps]
        assert changes[0] == 0
        assert all(1e-4 < change < 0.05 for change in changes[1:])

    def test_rows_before_float_matrices_are_not_rounded(self, judge):
        reference = judge(weight_type="F16", embedding_type="F32")
        for step in reference.logits_and_steps(TOKEN_IDS, self.own_streams(reference))[1]:
            np.testing.assert_allclose(step.rounded, step.exact, atol=1e-12)

    def test_a_step_depends_on_the_stream_before_it_alone(self, judge):
        reference = judge()
        streams = self.own_streams(reference)
        before = reference.logits_and_steps(TOKEN_IDS, streams)[1]
        streams[1] = streams[1][::-1]
        after = reference.logits_and_steps(TOKEN_IDS, streams)[1]
        same = [np.allclose(a.rounded, b.rounded, atol=1e-12) for a, b in zip(before, after, strict=True)]
        assert same == [True, True, False, True]
