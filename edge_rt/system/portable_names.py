"""File names that are valid on every system, because files are copied from one machine to another."""

from __future__ import annotations

from typing import Final

MAX_NAME_BYTES: Final = 255
_FORBIDDEN: Final = frozenset('<>:"/\\|?*')
_DEVICES: Final = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789\u00b9\u00b2\u00b3"]
)
"""Windows opens a device for these names in every folder, whatever follows the first dot."""


def is_device_name(name: str) -> bool:
    """Return whether Windows treats a file name as a device, such as ``nul``, ``NUL.txt`` and ``com1 .gguf``."""
    return name.partition(".")[0].rstrip(" ").lower() in _DEVICES


def is_portable_name(name: str) -> bool:
    """Return whether a name is a valid file or folder name on every system, and is not a path to another folder.

    These are refused: names that are empty, ``.`` or ``..``, or have separators or drive letters; control characters
    and ``<>:"|?*``; dots and spaces at the end, which Windows drops; Windows device names; and more than 255 bytes.
    """
    if not name or name[-1] in ". " or not _FORBIDDEN.isdisjoint(name) or not name.isprintable():
        return False
    return not is_device_name(name) and len(name.encode(errors="replace")) <= MAX_NAME_BYTES


def is_portable_path(path: str) -> bool:
    """Return whether all parts of a relative path are portable names, so that it stays inside its folder."""
    return all(is_portable_name(part) for part in path.split("/"))
