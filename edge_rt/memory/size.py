"""Sizes of memory as people write them."""

from __future__ import annotations

import re
from typing import Final

from edge_rt.errors import ConfigError

_UNITS: Final = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": 1 << 10, "kib": 1 << 10, "mi": 1 << 20, "mib": 1 << 20, "gi": 1 << 30, "gib": 1 << 30,
    "ti": 1 << 40, "tib": 1 << 40,
}  # fmt: skip
_SIZE: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-z]{0,3})")
_STEPS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def parse_size(text: str | int) -> int:
    """Return a size in bytes.

    Args:
        text: a number of bytes, or a number with a unit: KiB, MiB, GiB, TiB count in 1024, KB, MB, GB, TB (or K, M, G,
            T) in 1000.

    Raises:
        ConfigError: it is no size, or not above 0.
    """
    found = _SIZE.fullmatch(str(text).strip().lower())
    unit = _UNITS.get(found[2]) if found else None
    size = (
        int(float(found[1]) * unit)
        if found and unit is not None and "." in found[1]
        else (int(found[1]) * unit if found and unit is not None else 0)
    )
    if size < 1:
        raise ConfigError(
            "The size of memory cannot be read.",
            f"Got {str(text)!r:.40}.",
            "Write it as 600MiB, 2GiB, 1.5GB or a number of bytes.",
        )
    return size


def show_size(count: float) -> str:
    """Return bytes as people read them, for example ``"301.4 MiB"``."""
    for unit, step in _STEPS:
        if abs(count) >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count:.0f} B"


def round_up(count: int) -> int:
    """Return whole MiB that hold so many bytes, in bytes."""
    return -(-count // (1 << 20)) << 20


def exact_size(count: int) -> str:
    """Return bytes as ``--memory`` takes them, exactly: ``"302MiB"``, or a number of bytes."""
    return f"{count >> 20}MiB" if count % (1 << 20) == 0 else str(count)
