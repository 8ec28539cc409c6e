"""Predicts how long an export takes: its work, counted from the header, at speeds that are measured in a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_rt.export.decoder.weights import DecoderWeights
from edge_rt.export.quantise.decision import MEASURED_TOKENS, WeightChoice
from edge_rt.export.quantise.feedback import feedback, importance, quantise
from edge_rt.export.quantise.grids import Grid
from edge_rt.export.quantise.moments import WIDTH
from edge_rt.export.quantise.rows import CHUNK_VALUES
from edge_rt.export.weights.blocks import FLOAT_TYPES
from edge_rt.export.weights.linear import Part
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.package.manifest import ModelConfig
from edge_rt.system.machine import usable_cpus

_PROBE_INPUTS: Final = 128
_PROBE_ROWS: Final = (64, 2048)
_PROBE_TYPE: Final = "IQ4_NL"
_PROBE_SIZE: Final = 1024
_REPEATS: Final = 3

# Multiples of the probes' figures, chosen so that exports of 0.1 to 0.9 GB on two cores of an Intel Xeon come out right
# within about a third.
_EVEN_STEPS: Final = 0.45
"""Rounding to even steps, over rounding to a table."""
_TRIES: Final = 2
"""How often the sample of a matrix is rounded, to judge feedback."""
_WAITING: Final = 2.0
"""Threads wait for each other in steps as short as those of one input."""
_PACK: Final = 7.0
"""Packing and writing a weight, over converting a number."""
_CHECK: Final = 15.0
"""Reading a weight back and running it in the reference."""
_NATIVE: Final = 0.45
"""A multiplication of the package's own int8 kernels, over one of float32."""
_HEAD_FLOPS: Final = 4.0e9
"""Work on the constants of one head's 4-bit keys, as float32 operations."""
_BACKWARD: Final = 3
"""A pass forward and back, over one forward."""
_STEP_BYTES: Final = 450e6
"""Bytes that are hashed and written to the disk in a second."""
_START_SECONDS: Final = 1.5
"""Reading the header and the tokenizer, and starting ONNX Runtime."""


@dataclass(frozen=True)
class Speed:
    """How fast this machine is.

    Attributes:
        input_seconds: of rounding one input of a matrix with feedback, however few rows it has.
        weight_seconds: of rounding one weight to a table, on one core, beyond that.
        convert_seconds: of converting one number to float32.
        flop_seconds: of one operation of a float32 matrix product, on all cores.
        cpus: cores.
    """

    input_seconds: float
    weight_seconds: float
    convert_seconds: float
    flop_seconds: float
    cpus: int


def measure_speed() -> Speed:
    """Measure this machine; takes a few tenths of a second."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((4 * _PROBE_INPUTS, _PROBE_INPUTS)).astype(np.float32)
    moments = inputs.T @ inputs / np.float32(len(inputs))
    weight_of, factors, grid = importance(moments.diagonal()), [feedback(moments)], Grid(tile_format(_PROBE_TYPE))

    def rounding(rows: int) -> float:
        weights = rng.standard_normal((_PROBE_INPUTS, rows)).astype(np.float32)
        return _least(lambda: quantise(weights, weight_of, factors, grid))

    few, many = (rounding(rows) for rows in _PROBE_ROWS)
    per_weight = max(many - few, 0.1 * many) / ((_PROBE_ROWS[1] - _PROBE_ROWS[0]) * _PROBE_INPUTS)
    square = rng.standard_normal((_PROBE_SIZE, _PROBE_SIZE)).astype(np.float32)
    bytes_ = np.ones((_PROBE_SIZE, _PROBE_SIZE), np.uint8)
    return Speed(
        input_seconds=max(few / _PROBE_INPUTS - per_weight * _PROBE_ROWS[0], 0.1 * few / _PROBE_INPUTS),
        weight_seconds=per_weight,
        convert_seconds=_least(lambda: bytes_.astype(np.float32) * square) / square.size,
        flop_seconds=_least(lambda: square @ square) / (2 * _PROBE_SIZE**3),
        cpus=usable_cpus(),
    )


def _least(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def predict_seconds(
    weights: DecoderWeights,
    weights_bytes: int,
    config: ModelConfig,
    choice: WeightChoice,
    speed: Speed,
    *,
    moment_tokens: int,
    constant_tokens: int,
) -> float:
    """Predict the wall time of an export in seconds.

    Args:
        weights: matrices of the model.
        weights_bytes: of ``weights.bin``.
        config: dimensions of the model.
        choice: types of the matrices.
        speed: of this machine.
        moment_tokens: of the text that weights are quantised with; 0 without one.
        constant_tokens: of the text for the constants of 4-bit keys; 0 if there are none.
    """
    parts = {part.tensor.name: part for linear in weights.linears() for part in linear.parts}
    elements = sum(part.tensor.elements for part in parts.values())
    linears = [linear for layer in weights.layers for linear in layer.linears()]
    inside = sum(part.tensor.elements for linear in linears for part in linear.parts)
    seconds = _START_SECONDS + weights_bytes / _STEP_BYTES
    seconds += (_PACK + _CHECK) * elements * speed.convert_seconds
    seconds += sum(_rounding(part, speed, has_text=moment_tokens > 0) for part in parts.values())
    if moment_tokens:
        squares = sum(linear.in_features * min(WIDTH, linear.in_features) for linear in linears)
        flops = 2.0 * moment_tokens * (inside + squares)
        if choice.rivals or choice.ladders:
            flops += 2.0 * _BACKWARD * MEASURED_TOKENS * elements
            tried = {name: len(types) for name, types in choice.ladders.items()}
            tried |= {name: 2 for group in choice.rivals for name in group.names}
            inputs = sum(parts[name].tensor.shape[0] * count for name, count in tried.items())
            seconds += inputs * speed.input_seconds
        seconds += flops * speed.flop_seconds
    if constant_tokens:
        heads = config.num_layers * config.num_kv_heads
        seconds += (2.0 * _NATIVE * constant_tokens * inside + heads * _HEAD_FLOPS) * speed.flop_seconds
    return seconds


def _rounding(part: Part, speed: Speed, *, has_text: bool) -> float:
    if part.quantised_to is None or part.quantised_to in FLOAT_TYPES:
        return 0.0
    per_weight = speed.weight_seconds * (1.0 if tile_format(part.quantised_to).table else _EVEN_STEPS)
    if not has_text:
        return part.tensor.elements * per_weight / speed.cpus
    chunks = -(-part.tensor.elements // CHUNK_VALUES)
    turns = _TRIES + -(-chunks // speed.cpus)
    return (
        part.tensor.shape[0] * turns * _WAITING * speed.input_seconds + part.tensor.elements * per_weight / speed.cpus
    )
