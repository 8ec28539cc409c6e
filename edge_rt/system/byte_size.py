"""Sizes and counts as people read and write them: memory in units of 1024, disk and downloads in units of 1000."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from edge_rt.errors import ConfigError, StorageError

_UNITS: Final = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": 1 << 10, "kib": 1 << 10, "mi": 1 << 20, "mib": 1 << 20, "gi": 1 << 30, "gib": 1 << 30,
    "ti": 1 << 40, "tib": 1 << 40,
    "p": 10**15, "pb": 10**15, "pi": 1 << 50, "pib": 1 << 50, "e": 10**18, "eb": 10**18, "ei": 1 << 60, "eib": 1 << 60,
}  # fmt: skip
_SIZE: Final = re.compile(r"(-?)([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-z]{0,3})")
_LARGEST: Final = 1 << 50
_LEAST_MIB: Final = (1 << 20) // 10
_ENDING: Final = re.compile(r"(?<![aeiou])y$|ss$")
_PLURALS: Final = {"y": "ies", "ss": "sses"}
_EXAMPLES: Final = "Write it as 600MiB, 2GiB, 1.5GB or a number of bytes."


def parse_size(text: str | int) -> int:
    """Return a size in bytes.

    Args:
        text: a number of bytes, or a number with a unit: KiB, MiB, GiB, TiB count in 1024, KB, MB, GB, TB (or K, M, G,
            T) in 1000.

    Raises:
        ConfigError: it is not a size, not above 0, or more than any machine has.
    """
    given = f"Got {str(text)!r:.40}"
    found = _SIZE.fullmatch(str(text).strip().lower()) if type(text) in (str, int) else None
    unit = _UNITS.get(found[3]) if found else None
    if found is None or unit is None:
        raise ConfigError("The size cannot be read.", f"{given}.", _EXAMPLES)
    number = float(found[2]) if "." in found[2] else int(found[2])
    size = int(number * unit)
    if found[1] or size < 1:
        raise ConfigError("The size is out of range.", f"{given}, it must be above 0.", _EXAMPLES)
    if size > _LARGEST:
        limit = f"the limit is {_LARGEST >> 40} TiB"
        raise ConfigError("The size is too large.", f"{given}, {limit}.", _EXAMPLES)
    return size


def parse_limit(size: str | int | None) -> int:
    """Return a largest size in bytes, as ``parse_size`` does; 0 for None or 0, which mean no limit."""
    return 0 if size is None or size == 0 else parse_size(size)


def show_size(count: float) -> str:
    """Return bytes of memory as people read them: ``"1.31 GiB"``, ``"301.4 MiB"``, ``"81.4 KiB"``."""
    step, unit, digits = _unit(count)
    return f"{count / step:.{digits}f} {unit}"


def show_share(count: int, whole: int | None) -> str:
    """Return bytes and, if given, the whole that they are a part of, in the same unit: ``"301.4 of 400.0 MiB"``."""
    if whole is None:
        return show_size(count)
    step, unit, digits = _unit(whole)
    return f"{count / step:.{digits}f} of {whole / step:.{digits}f} {unit}"


def show_at_least(count: int) -> str:
    """Return bytes as ``show_size`` does, rounded up, so that the printed size is enough when a user types it."""
    step, unit, digits = _unit(count)
    parts = 10**digits
    # Whole numbers, so that nothing is rounded down.
    return f"{-(-count * parts // step) / parts:.{digits}f} {unit}"


def _unit(count: float) -> tuple[int, str, int]:
    """Return the bytes of a unit, its name, and the digits that are shown."""
    if abs(count) >= 1 << 30:
        return 1 << 30, "GiB", 2
    return (1 << 10, "KiB", 1) if 0 < abs(count) < _LEAST_MIB else (1 << 20, "MiB", 1)


def in_mib(count: int) -> str:
    """Return bytes in MiB for a column that names the unit, with spaces between thousands: ``1 240.3``."""
    return f"{count / (1 << 20):,.1f}".replace(",", " ")


def human_bytes(count: int) -> str:
    """Return bytes in units of 1000, as disks and downloads are counted: ``92.9 MB``."""
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def counted(count: int, noun: str, shown: str | None = None) -> str:
    """Return a count with its noun in the singular or plural: ``"1 row"``, ``"2 rows"``.

    Args:
        noun: in the singular; its plural ends in -s, -es behind -ss, or -ies for -y behind a consonant.
        shown: the count as it is to be written; None: its digits.
    """
    plural = _ENDING.sub(lambda end: _PLURALS[end[0]], noun) if _ENDING.search(noun) else f"{noun}s"
    return f"{count if shown is None else shown} {noun if count == 1 else plural}"


def round_up(count: int, step: int = 1 << 20) -> int:
    """Return a number of bytes rounded up to whole MiB, or to a multiple of another step."""
    return -(-count // step) * step


def file_size(path: Path | None) -> int:
    """Return the size of a file in bytes; 0 if ``path`` is None."""
    if path is None:
        return 0
    try:
        return path.stat().st_size
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror or error}.", "Check the path.") from error


def exact_size(count: int) -> str:
    """Return bytes exactly, in the form that ``--memory`` accepts: ``"2GiB"``, ``"302MiB"``, or a number of bytes."""
    for unit, bits in (("GiB", 30), ("MiB", 20)):
        if count % (1 << bits) == 0:
            return f"{count >> bits}{unit}"
    return str(count)
