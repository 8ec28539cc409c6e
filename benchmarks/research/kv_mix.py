"""Mixes of cache formats over layers: the layers that 4 bits hurt most keep more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from kv_scheme import Scheme

T = TypeVar("T")


def rank_layers(sensitivity: Sequence[float]) -> list[int]:
    """Return the layers, the most sensitive first; the lower one of equals."""
    return sorted(range(len(sensitivity)), key=lambda layer: (-sensitivity[layer], layer))


def swapped(layers: Sequence[T], layer: int, other: T) -> list[T]:
    """Return the layers with one of them replaced."""
    return [other if index == layer else one for index, one in enumerate(layers)]


def mixed(chosen: Sequence[int], count: int, better: T, worse: T) -> list[T]:
    """Return ``count`` layers, of which the chosen ones are the better."""
    return [better if layer in chosen else worse for layer in range(count)]


def with_formats(ranked: Sequence[int], named: Mapping[str, Scheme]) -> dict[str, list[Scheme]]:
    """Return the mixes that are compared.

    Half the layers in int8 and half in int4 take exactly the bytes of k8v4. The least sensitive half is taken as well:
    if ranking means anything, that is the worst choice. Two layers in k8v4 are what int4 can have and stay within 0.32
    times f16's bytes, of 30.

    Args:
        ranked: layers, the most sensitive first.
        named: the schemes.
    """
    count, half = len(ranked), len(ranked) // 2
    int8, k8v4, int4 = (named[name] for name in ("int8", "k8v4, values rotated", "int4, both rotated"))
    return {
        "int8 in the most sensitive half, int4": mixed(ranked[:half], count, int8, int4),
        "int8 in the least sensitive half, int4": mixed(ranked[half:], count, int8, int4),
        "k8v4 in the most sensitive half, int4": mixed(ranked[:half], count, k8v4, int4),
        "k8v4 in the two most sensitive layers, int4": mixed(ranked[:2], count, k8v4, int4),
    }
