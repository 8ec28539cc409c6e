"""The last stage of an export: compares what the package computes with what the checkpoint says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidPackage
from edge_rt.machine import usable_cpus
from edge_rt.package import ModelConfig
from edge_rt.session import Session, StopSwitch, pool_size

CHECK_ROWS: Final = 24
MAX_ERROR: Final = {"float": 2e-3, "int8": 0.25}
"""Largest accepted root mean square of the logit differences, relative to the spread of the reference's logits.

Float activations differ from the reference by rounding alone (about 1e-5 on real models). int8 activations lose about
0.05 on a trained model; random weights lose more. A wrong tensor, order or scale gives 1 and above.
"""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class CheckResult:
    """How close a graph comes to the reference.

    Attributes:
        activations: ``"float"`` or ``"int8"``.
        relative_error: root mean square of the differences over the standard deviation of the reference.
        top1_agreement: share of rows whose most likely token is the same.
        mean_kl: mean Kullback-Leibler divergence of the reference from the graph, in nats.
    """

    activations: str
    relative_error: float
    top1_agreement: float
    mean_kl: float


def check_token_ids(vocab_size: int, count: int = CHECK_ROWS) -> list[int]:
    """Return ids spread over the vocabulary, the same at every call."""
    return [(7 + 9973 * i) % vocab_size for i in range(count)]


def run_graph(graph: Path, config: ModelConfig, token_ids: Sequence[int]) -> Array:
    """Return the graph's logits for a whole sequence, float32 ``[len(token_ids), vocabulary]``."""
    session = Session(graph, threads=pool_size() or usable_cpus())
    rows = len(token_ids)
    binding = session.binding()
    logits = np.empty((rows, config.vocab_size), np.float32)
    binding.bind_input("input_ids", np.asarray(token_ids, np.int64))
    binding.bind_input("logit_rows", np.arange(rows, dtype=np.int64))
    binding.bind_input("seqlens_k", np.asarray([rows - 1], np.int32))
    binding.bind_input("total_sequence_length", np.asarray(rows, np.int32))
    binding.bind_output("logits", logits)
    for layer in range(config.num_layers):
        for kind in ("key", "value"):
            cache = np.zeros((1, config.num_kv_heads, rows, config.head_dim), np.float32)
            binding.bind_input(f"past.{layer}.{kind}", cache)
            binding.bind_output(f"present.{layer}.{kind}", cache)
    binding.run(StopSwitch())
    return logits


def compare(reference: Array, found: Array, activations: str) -> CheckResult:
    """Measure the distance of two sets of logits, both ``[rows, vocabulary]``."""
    p, q = _log_softmax(reference.astype(np.float64)), _log_softmax(found.astype(np.float64))
    return CheckResult(
        activations=activations,
        relative_error=float(np.sqrt(np.mean((found - reference) ** 2)) / max(float(reference.std()), 1e-12)),
        top1_agreement=float(np.mean(reference.argmax(-1) == found.argmax(-1))),
        mean_kl=float(np.mean(np.sum(np.exp(p) * (p - q), axis=-1))),
    )


def require_close(result: CheckResult) -> None:
    """Refuse a graph that does not compute the checkpoint.

    Raises:
        InvalidPackage: the error is above ``MAX_ERROR``, or not a number.
    """
    if not result.relative_error <= MAX_ERROR[result.activations]:
        raise InvalidPackage(
            "The exported model does not compute what the checkpoint says, so it was not published.",
            f"Relative error of the logits with {result.activations} activations: {result.relative_error:.3g}, "
            f"limit {MAX_ERROR[result.activations]:.3g}.",
            "Report this with the name of the checkpoint.",
        )


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
