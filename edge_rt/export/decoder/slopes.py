"""Derivatives of the activations of feed-forwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.export.decoder.forward import GELU_CUBE, GELU_SLOPE, sigmoid

Array = npt.NDArray[Any]


def _silu(x: Array) -> Array:
    share = sigmoid(x)
    slope: Array = share * (1 + x * (1 - share))
    return slope


def _gelu(x: Array) -> Array:
    bent = np.tanh(GELU_SLOPE * (x + GELU_CUBE * x**3))
    slope: Array = 0.5 * (1 + bent) + 0.5 * x * (1 - bent * bent) * GELU_SLOPE * (1 + 3 * GELU_CUBE * x * x)
    return slope.astype(x.dtype)


def _relu2(x: Array) -> Array:
    slope: Array = 2 * np.maximum(x, 0)
    return slope


SLOPES: Final[Mapping[str, Callable[[Array], Array]]] = {"silu": _silu, "gelu": _gelu, "relu2": _relu2}
"""Name in a description -> derivative."""
