"""Predicts how long an export takes: its work, counted from the header, at speeds that are measured in a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_rt.export.decoder.weights import DecoderWeights
from edge_rt.export.quantise.decision import MEASURED_TOKENS, WeightChoice
from edge_rt.export.quantise.feedback import quantise
from edge_rt.export.quantise.grids import Grid
from edge_rt.export.quantise.moments import WIDTH
from edge_rt.export.quantise.rows import SAMPLE_ROWS
from edge_rt.export.quantise.sensitivity import TRIED_ROWS
from edge_rt.export.weights.blocks import FLOAT_TYPES
from edge_rt.export.weights.linear import Part
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.package.manifest import ModelConfig
from edge_rt.system.machine import usable_cpus

_PROBE_INPUTS: Final = 512
_PROBE_ROWS: Final = 128
_PROBE_TYPE: Final = "IQ4_NL"
_PROBE_SIZE: Final = 1024
_REPEATS: Final = 3

# Multiples of the probes' figures, chosen so that exports of 0.1 to 0.9 GB on two cores of an Intel Xeon come out right
# within about a third.
_EVEN_STEPS: Final = 0.6
"""Rounding to even steps, over rounding to a table."""
_SEARCHES: Final = 2.0
"""With feedback the scales of most groups are searched twice."""
_TRIES: Final = 3
"""How often the sample of a matrix is rounded, to judge feedback."""
_FACTORING: Final = 5.0
"""An operation of a Cholesky factor, over one of a matrix product."""
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
        weight_seconds: of rounding one weight to a table, on one core.
        feedback_seconds: of adding one weight's error to one other weight, on one core.
        convert_seconds: of converting one number to float32.
        flop_seconds: of one operation of a float32 matrix product, on all cores.
    """

    weight_seconds: float
    feedback_seconds: float
    convert_seconds: float
    flop_seconds: float
    cpus: int


def measure_speed() -> Speed:
    """Measure this machine; takes a few tenths of a second."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((_PROBE_ROWS, _PROBE_INPUTS)).astype(np.float32)
    even, grid = np.ones(_PROBE_INPUTS, np.float32), Grid(tile_format(_PROBE_TYPE))
    factor = np.zeros((_PROBE_INPUTS, _PROBE_INPUTS), np.float32)
    plain = _least(lambda: quantise(rows, even, (), grid))
    with_feedback = _least(lambda: quantise(rows, even, (factor,), grid))
    square = rng.standard_normal((_PROBE_SIZE, _PROBE_SIZE)).astype(np.float32)
    bytes_ = np.ones((_PROBE_SIZE, _PROBE_SIZE), np.uint8)
    return Speed(
        weight_seconds=plain / rows.size,
        feedback_seconds=max(with_feedback - plain, 0.1 * plain) / (rows.size * _PROBE_INPUTS / 2),
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
        cubes = sum(linear.in_features * min(WIDTH, linear.in_features) ** 2 for linear in linears)
        flops = 2.0 * moment_tokens * (inside + squares) + _FACTORING * cubes / 3
        if choice.rivals or choice.ladders:
            flops += 2.0 * _BACKWARD * MEASURED_TOKENS * elements
            tried = {name: len(types) for name, types in choice.ladders.items()}
            tried |= {name: 2 for group in choice.rivals for name in group.names}
            inputs = sum(parts[name].tensor.shape[0] * count for name, count in tried.items())
            seconds += inputs * TRIED_ROWS * speed.weight_seconds
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
    inputs = part.tensor.shape[0]
    per_weight = _SEARCHES * per_weight + speed.feedback_seconds * min(WIDTH, inputs) / 2
    return (_TRIES * SAMPLE_ROWS * inputs + part.tensor.elements / speed.cpus) * per_weight
