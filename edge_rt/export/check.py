"""The last stage of an export: compares what the package computes with what the checkpoint says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidPackage
from edge_rt.export.profile import OpProfile
from edge_rt.machine import usable_cpus
from edge_rt.package import ModelConfig
from edge_rt.session import Session, StopSwitch, pool_size

CHECK_ROWS: Final = 24
MAX_ERROR: Final = {"float": 2e-3, "int8": 0.25}
"""Largest accepted root mean square of the logit differences, relative to the spread of the reference's logits.

Float activations differ from the reference by rounding alone (about 1e-5 on real models). int8 activations lose about
0.05 on a trained model; random weights lose more. In a small random model a matrix in a wrong order or place gives 0.4
to 1.6, whatever the activations. Two swapped norms give 0.09 and a wrong rope base 0.03: the float limit refuses them,
the int8 limit does not, so in the native profile, which has no float graph, only tests guard against such faults.
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


def run_graph(graph: Path, config: ModelConfig, token_ids: Sequence[int], profile: OpProfile) -> Array:
    """Return the graph's logits for a whole sequence, float32 ``[len(token_ids), vocabulary]``.

    Raises:
        RuntimeUnavailable: this machine cannot run the profile.
    """
    session = Session(graph, threads=pool_size() or usable_cpus(), profile=profile.name)
    inputs, outputs = profile.feeds(config, token_ids)
    binding = session.binding()
    for name, array in inputs.items():
        binding.bind_input(name, array)
    for name, array in outputs.items():
        binding.bind_output(name, array)
    binding.run(StopSwitch())
    return outputs["logits"]


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
