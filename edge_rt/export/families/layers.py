"""Patterns of layers: which of them have a sliding window, and which are rotated."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge_rt.errors import as_json
from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.package.decoder import MAX_CONTEXT, MAX_LAYERS, Dimensions
from edge_rt.package.layers import Layer


def with_attention(layer: Layer, **changes: object) -> Layer:
    """Return a layer whose attention differs."""
    assert layer.attention is not None
    return replace(layer, attention=replace(layer.attention, **changes))  # type: ignore[arg-type]


def window_in(dims: Dimensions, window: int) -> int:
    """Return a window; 0 if it covers the whole context."""
    return window if window < dims.context_length else 0


@dataclass(frozen=True)
class Windows:
    """Windows of all layers.

    Attributes:
        kinds: whether a layer is one of those with a window; it is also where the window covers the whole context.
        sizes: tokens that each layer sees; 0: all.
    """

    kinds: tuple[bool, ...]
    sizes: tuple[int, ...]


def windows_of(dims: Dimensions, kinds: tuple[bool, ...], window: int) -> Windows:
    """Return the windows of layers; layers of both kinds see all where it covers the whole context."""
    size = window_in(dims, window)
    return Windows(kinds, tuple(size if kind else 0 for kind in kinds))


def config_windows(
    config: ConfigReader,
    dims: Dimensions,
    *,
    window: int | None = None,
    period: int = 0,
    period_key: str | None = None,
) -> Windows:
    """Return the windows of all layers, as a ``config.json`` says.

    Args:
        period: the last one of so many layers has none, where no list says which; 0: there are no windows then.
    """
    kinds = config.layer_types(dims.num_layers)
    if kinds is None:
        kinds = every(dims.num_layers, _config_period(config, period, period_key))
    elif period_key is not None:
        # The list has the last word.
        config.get(period_key)
    if not any(kinds):
        config.get("sliding_window")
        return windows_of(dims, kinds, 0)
    return windows_of(dims, kinds, config.count("sliding_window", MAX_CONTEXT, default=window))


def _config_period(config: ConfigReader, period: int, key: str | None) -> int:
    if key is None or not period:
        return period
    if isinstance(stated := config.get(key), str):
        raise config.refused(f"{key} is {as_json(stated)} without layer_types")
    return config.count(key, MAX_LAYERS, default=period)


def header_windows(reader: HeaderReader, dims: Dimensions, *, period: int, default: int | None = 0) -> Windows:
    """Return the windows of all layers; without other word the last one of ``period`` layers has none.

    Args:
        default: size of a window that the file does not state; None: it must.
    """
    window = reader.count("attention.sliding_window", MAX_CONTEXT, least=0, default=default)
    if reader.is_array(key := "attention.sliding_window_pattern"):
        kinds = reader.flags(key, dims.num_layers)
    else:
        kinds = every(dims.num_layers, reader.period(key, period))
    return windows_of(dims, tuple(kind and window > 0 for kind in kinds), window)


def every(layers: int, period: int) -> tuple[bool, ...]:
    """Return True for all layers but every ``period``-th; for none of them without a period."""
    return tuple(period > 0 and (layer + 1) % period != 0 for layer in range(layers))
