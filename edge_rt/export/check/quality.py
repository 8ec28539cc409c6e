"""What quantising the weights of a package lost: by tensor class, and in the package's predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import QualityLoss
from edge_rt.export.check.compare import run_graph
from edge_rt.export.checkpoint import Checkpoint
from edge_rt.export.decoder.weights import DecoderWeights
from edge_rt.export.quantise.decision import QUALITY_TOKENS
from edge_rt.export.quantise.moments import CalibrationWalk
from edge_rt.export.quantise.rows import PartError
from edge_rt.export.weights.linear import Linear
from edge_rt.export.weights.matrices import Matrices, row_groups
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.manifest import PER_LAYER
from edge_rt.package.weights_info import KEEP, Quality, TensorClass, WeightsInfo

MAX_KL: Final = 0.5
"""Largest accepted mean Kullback-Leibler divergence from the checkpoint, in nats a token."""
_PIECE_ROWS: Final = 1024
"""Rows of the head whose logits are computed at a time."""
_DIGITS: Final = 4
"""Significant digits that are stored; the rest depends on the order of sums."""
_MOST_NATS: Final = 700.0
"""The exponential of more does not fit a float."""

Array = npt.NDArray[Any]


def measure_quality(checkpoint: Checkpoint, matrices: Matrices, walk: CalibrationWalk, graph: Path) -> Quality:
    """Compare the predictions of a package with those of the checkpoint in float32."""
    numbers = range(len(walk.sequences))
    held_out = [number for number in numbers if walk.is_held_out(number)]
    # The last one may be a short rest.
    sequence = max(held_out or numbers, key=lambda number: len(walk.sequences[number]))
    ids = walk.sequences[sequence][:QUALITY_TOKENS]
    found = run_graph(graph, checkpoint.decoder, ids, checkpoint.profile)
    head = "token_embd.weight" if checkpoint.decoder.is_tied else "output.weight"
    final = walk.final(sequence)[: len(ids)]
    kl, ours, floats = divergence(final, matrices.pieces(head), found, ids, logits_of=walk.logits_of)
    return Quality(
        kl=_rounded(kl),
        perplexity=_rounded(float(np.exp(min(ours, _MOST_NATS)))),
        float_perplexity=_rounded(float(np.exp(min(floats, _MOST_NATS)))),
        tokens=len(ids),
        is_held_out=bool(held_out),
    )


def divergence(
    final: Array,
    head: Iterable[Array],
    found: Array,
    token_ids: Sequence[int],
    *,
    logits_of: Callable[[Array], Array] = lambda products: products,
) -> tuple[float, float, float]:
    """Return the mean divergence of predictions from others, and the mean loss of the next token in both, in nats.

    Args:
        final: the head's input, float32 ``[tokens, hidden_size]``.
        head: pieces of the head, float32 ``[rows, hidden_size]`` each.
        found: the other logits, float32 ``[tokens, vocabulary]``.

    Returns:
        The Kullback-Leibler divergence of the head's predictions from ``found``; the loss of ``found``, and that of
        the head.
    """
    count = len(token_ids)
    labels = np.asarray(token_ids[1:], np.int64)
    own, peaks, sums = np.zeros(max(count - 1, 0)), np.full((2, count), -np.inf), np.zeros((2, count))
    crossed, first = np.zeros(count), 0
    for rows in row_groups(head, _PIECE_ROWS):
        both = np.stack([logits_of(final @ rows.T), found[:, first : first + len(rows)]]).astype(np.float64)
        higher = np.maximum(peaks, both.max(axis=2))
        shares, before = np.exp(both - higher[:, :, None]), np.exp(peaks - higher)
        sums = sums * before + shares.sum(axis=2)
        crossed = crossed * before[0] + (shares[0] * (both[0] - both[1])).sum(axis=1)
        inside = np.flatnonzero((labels >= first) & (labels < first + len(rows)))
        own[inside] = both[0][inside, labels[inside] - first]
        peaks, first = higher, first + len(rows)
    logs = peaks + np.log(sums)
    kl = crossed / sums[0] - logs[0] + logs[1]
    if count < 2:
        return float(kl.mean()), 0.0, 0.0
    theirs = found[np.arange(count - 1), labels]
    return float(kl.mean()), float((logs[1, :-1] - theirs).mean()), float((logs[0, :-1] - own).mean())


def require_quality(quality: Quality | None, *, accept_loss: bool) -> tuple[str, ...]:
    """Refuse a package whose predictions are far from the checkpoint's, or warn of it."""
    if quality is None or quality.kl <= MAX_KL:
        return ()
    what = "Quantising changes the model's predictions too much."
    numbers = (
        f"The mean KL divergence from the checkpoint is {quality.kl:.3g} nats a token, the limit {MAX_KL}; perplexity "
        f"{quality.perplexity:.4g} instead of {quality.float_perplexity:.4g}, on {quality.tokens} tokens."
    )
    if accept_loss and np.isfinite(quality.kl):
        return (f"{what} {numbers}",)
    raise QualityLoss(
        what,
        numbers,
        "Choose --weights int8 or a larger --size, or accept the loss: edge-rt export --accept-loss, accept_loss=True.",
    )


def describe_weights(
    checkpoint: Checkpoint, layout: WeightsLayout, errors: Iterable[PartError], quality: Quality | None
) -> WeightsInfo | None:
    """Return what the manifest says of the weights; None for those of the checkpoint."""
    choice = checkpoint.choice
    if choice.name == KEEP:
        return None
    text = checkpoint.calibration if choice.quantises else None
    return WeightsInfo(
        choice=choice.name,
        size=choice.size,
        calibration=None if text is None else text.source,
        calibration_tokens=0 if text is None else len(text.token_ids),
        classes=tensor_classes(checkpoint.weights, layout, errors),
        quality=quality,
    )


def tensor_classes(
    weights: DecoderWeights, layout: WeightsLayout, errors: Iterable[PartError] = ()
) -> dict[str, TensorClass]:
    """Return types, bits and errors by class of tensors."""
    by_name = {error.name: error for error in errors}
    layers = weights.layers
    classes: dict[str, tuple[Linear, ...]] = {
        "attention": tuple(linear for layer in layers for linear in layer.mixers),
        "feed_forward": tuple(linear for layer in layers for linear in layer.feed_forwards),
        "embedding": (weights.embedding,),
        "head": (weights.head,),
    }
    if weights.per_layer:
        classes[PER_LAYER] = weights.per_layer_linears()
    return {name: _tensor_class(linears, layout, by_name) for name, linears in classes.items()}


def _tensor_class(linears: Sequence[Linear], layout: WeightsLayout, errors: Mapping[str, PartError]) -> TensorClass:
    types: dict[str, int] = {}
    found = []
    for part in (part for linear in linears for part in linear.parts):
        types[part.type_name] = types.get(part.type_name, 0) + part.tensor.elements
        if part.tensor.name in errors:
            found.append(errors[part.tensor.name])
    prefixes = tuple(f"{linear.name}." for linear in linears)
    nbytes = sum(
        slot.nbytes for name, slot in layout.slots.items() if name.startswith(prefixes) and not name.endswith(".bias")
    )
    return TensorClass(
        types=types,
        bits=round(8 * nbytes / sum(types.values()), 3),
        error=_mean((error.error, error.values) for error in found),
        upper_error=_mean((error.upper_error, error.values) for error in found if error.upper_error is not None),
    )


def _mean(errors: Iterable[tuple[float, int]]) -> float | None:
    """Return the mean of errors, weighted with numbers of weights; None of none."""
    pairs = list(errors)
    return _rounded(sum(error * count for error, count in pairs) / sum(count for _, count in pairs)) if pairs else None


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
