"""A random draft head, and what it computes, in numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_rt.ort.op_library import native_library
from tests.ops.packed import FLOAT_FORMATS, random_matrix, rounded_rows, wide

FRONTIER = 8
EPSILON = 1e-5


@dataclass
class Head:
    """Tensors by the names of the operator's inputs, and the weights that its matrices stand for."""

    attributes: dict[str, Any]
    inputs: dict[str, np.ndarray]
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def more(self, head_ids=None, more_ids=None):
        """Return the same with other rows in the reduced heads; they are rows of the one matrix ``lm_head``."""
        inputs, values = dict(self.inputs), dict(self.values)
        for name, ids in (("head", head_ids), ("more", more_ids)):
            if ids is None:
                continue
            matrix = "head" if name == "head" else "more_head"
            inputs[f"{name}_ids"] = np.asarray(ids, np.int32)
            inputs[matrix] = self._rows(np.asarray(ids, np.int64))
            values[matrix] = values["lm_head"][ids]
        return Head(self.attributes, inputs, values)

    def _rows(self, ids):
        source = self.values["packed_lm_head"]
        form, shape = self.attributes["head_format"], (self.attributes["vocabulary"], self.attributes["hidden"])
        target = np.zeros((-(-len(ids) // 16), *source.shape[1:]), np.uint8)
        native_library().gather_rows(form, source, shape, ids.astype(np.int32), target)
        return target


def random_head(rng, *, hidden=64, intermediate=96, vocabulary=80, blocks=1, nodes=32, formats=None):
    """Return a head whose reduced matrix holds every third token, and ``more_head`` some others.

    Args:
        rng: numpy's.
        hidden, intermediate, vocabulary, blocks, nodes: see the operator.
        formats: of embedding, fc, gate_up, down and head.
    """
    names = ("embedding", "fc", "gate_up", "down", "head")
    form = dict(zip(names, formats or ("w8", "w4m", "w4m", "w4m", "w8"), strict=True))
    hidden = max(wide(form[name], hidden) for name in ("embedding", "gate_up", "head"))
    while 2 * hidden % (wide(form["fc"], 1) or 1):
        hidden += hidden
    intermediate = wide(form["down"], -(-intermediate // 16) * 16)
    attributes = {
        "hidden": hidden,
        "intermediate": intermediate,
        "vocabulary": vocabulary,
        "nodes": nodes,
        "blocks": blocks,
        "epsilon": EPSILON,
        **{f"{name}_format": value for name, value in form.items()},
    }
    inputs, values = {}, {}

    def matrix(name, key, rows, columns, factor=1.0):
        packed, weights = random_matrix(rng, form[key], rows, columns)
        inputs[name], values[name] = packed, weights.astype(np.float64) * factor

    inputs["hidden"] = rng.standard_normal((1, hidden)).astype(np.float32) * 3
    inputs["token"] = rng.integers(0, vocabulary, 1)
    matrix("embedding", "embedding", vocabulary, hidden)
    matrix("fc", "fc", hidden, 2 * hidden)
    for name in ("state_norm", "token_norm", "output_norm"):
        inputs[name] = (1 + 0.3 * rng.standard_normal(hidden)).astype(np.float32)
    matrix("lm_head", "head", vocabulary, hidden)
    values["packed_lm_head"] = inputs.pop("lm_head")
    for block in range(1, blocks + 1):
        inputs[f"norm_{block}"] = (1 + 0.3 * rng.standard_normal(hidden)).astype(np.float32)
        matrix(f"gate_up_{block}", "gate_up", 2 * intermediate, hidden)
        matrix(f"down_{block}", "down", hidden, intermediate)
    inputs["limits"] = np.array([nodes, 4, 3], np.int32)
    head_ids = np.arange(0, vocabulary, 3)
    more_ids = np.sort(
        rng.choice(np.setdiff1d(np.arange(vocabulary), head_ids), min(19, vocabulary // 4), replace=False)
    )
    return Head(attributes, inputs, values).more(head_ids, more_ids)


def rms(x):
    """Return x over the root of its mean square."""
    return x / np.sqrt((x.astype(np.float64) ** 2).mean() + EPSILON)


def product(x, weights, form):
    """Return a row times a matrix as QuantLinear defines it."""
    seen = x if form in FLOAT_FORMATS else rounded_rows(x.astype(np.float32)[None])[0]
    return seen @ weights.T


def step(head, state, token):
    """Return the next state and the log probabilities, token -> number."""
    forms = head.attributes
    inputs, values = head.inputs, head.values
    u = np.concatenate([rms(state) * inputs["state_norm"], rms(values["embedding"][token]) * inputs["token_norm"]])
    y = product(u, values["fc"], forms["fc_format"])
    for block in range(1, forms["blocks"] + 1):
        rows = product(rms(y) * inputs[f"norm_{block}"], values[f"gate_up_{block}"], forms["gate_up_format"])
        gate, up = rows.reshape(-1, 2, 16).transpose(1, 0, 2).reshape(2, -1)
        y = y + product(gate / (1 + np.exp(-gate)) * up, values[f"down_{block}"], forms["down_format"])
    n = rms(y) * inputs["output_norm"]
    logits = np.concatenate(
        [product(n, values[name], forms["head_format"]) for name in ("head", "more_head") if name in inputs]
    )
    ids = np.concatenate([inputs[name] for name in ("head_ids", "more_ids") if name in inputs])
    peak = logits.max()
    log_probs = logits - peak - np.log(np.exp(logits - peak).sum())
    return y, dict(zip(ids.tolist(), log_probs.tolist(), strict=True))


def tree(head):
    """Return the nodes in order: token, parent's place, depth, log probability; and the least gap between totals."""
    nodes, width, depth = head.inputs["limits"].tolist()
    found = []  # (total, number) sorts; number -> (token, parent number, depth, log_prob, state)
    made = []
    frontier = [(0.0, None, head.inputs["hidden"][0].astype(np.float64), int(head.inputs["token"][0]))]
    for level in range(1, depth + 1):
        for total, parent, state, token in frontier:
            after, log_probs = step(head, state, token)
            for child, log_prob in sorted(log_probs.items(), key=lambda pair: (-pair[1], pair[0]))[:width]:
                found.append((-(total + log_prob), len(made)))
                made.append((child, parent, level, log_prob, after))
        best = sorted(found)[:nodes]
        frontier = [(-t, n, made[n][4], made[n][0]) for t, n in best if made[n][2] == level][:FRONTIER]
    totals = [total for total, _ in sorted(found)][: nodes + 1]
    place = {number: index for index, (_, number) in enumerate(best)}
    result = [(made[n][0], -1 if made[n][1] is None else place[made[n][1]], *made[n][2:4]) for _, n in best]
    return result, min(np.diff(totals), default=1.0)
