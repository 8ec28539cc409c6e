"""Patterns of layers: which of them have a sliding window, and which are rotated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.dimensions import MAX_CONTEXT, MAX_LAYERS, Dimensions
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.package.decoder import Layer


def with_attention(layer: Layer, **changes: object) -> Layer:
    """Return a layer whose attention differs."""
    return replace(layer, attention=replace(layer.attention, **changes))  # type: ignore[arg-type]


def window_in(dims: Dimensions, window: int) -> int:
    """Return a window; 0 if it covers the whole context."""
    return window if window < dims.context_length else 0


def config_windows(
    config: ConfigReader,
    dims: Dimensions,
    *,
    window: int | None = None,
    period: int = 0,
    period_keys: Sequence[str] = (),
) -> tuple[int, ...]:
    """Return the window of every layer, 0 for none, as a ``config.json`` says.

    Args:
        config: of the model.
        dims: its sizes.
        window: the family's, where the configuration says nothing.
        period: the last one of so many layers has none, where no list says which; 0: there are no windows then.
        period_keys: under which configurations state the period.

    Raises:
        InvalidModelFile: a number or a list cannot be used.
        UnsupportedModel: a layer is of an unknown kind.
    """
    kinds = config.layer_types(dims.num_layers)
    for key in period_keys:
        period = config.count(key, MAX_LAYERS, default=period) if period else period
    if kinds is None:
        kinds = every(dims.num_layers, period)
    if not any(kinds):
        config.get("sliding_window")
        return (0,) * dims.num_layers
    size = window_in(dims, config.count("sliding_window", MAX_CONTEXT, default=window))
    return tuple(size if kind else 0 for kind in kinds)


def header_windows(reader: HeaderReader, dims: Dimensions, *, period: int) -> tuple[int, ...]:
    """Return the window of every layer, 0 for none, as a GGUF header says.

    Args:
        reader: of the header.
        dims: sizes of the model.
        period: the last one of so many layers has none, unless the file says otherwise.

    Raises:
        InvalidModelFile: a number cannot be used.
    """
    size = window_in(dims, reader.count("attention.sliding_window", MAX_CONTEXT, least=0, default=0))
    kinds = reader.flags("attention.sliding_window_pattern", dims.num_layers)
    if kinds is None:
        kinds = every(dims.num_layers, reader.period("attention.sliding_window_pattern", period))
    return tuple(size if kind else 0 for kind in kinds)


def every(layers: int, period: int) -> tuple[bool, ...]:
    """Return True for all layers but every ``period``-th; for none of them without a period."""
    return tuple(period > 0 and (layer + 1) % period != 0 for layer in range(layers))
