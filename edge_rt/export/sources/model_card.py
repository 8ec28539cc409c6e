"""The licence in a model card: ``README.md`` may begin with metadata between two lines of three dashes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from edge_rt.system.checkpoint_names import CARD_FILE

MAX_CARD_BYTES: Final = 1 << 20

_FIELD: Final = re.compile(r"(license|license_name):(.*)")
_LICENSE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .+_-]{0,63}")


def read_license(folder: Path) -> str | None:
    """Return the licence that a folder's model card states; None if it states none, or there is no card.

    A card is text for people: one that cannot be read or understood states no licence.
    """
    card = folder / CARD_FILE
    try:
        if not card.is_file():
            return None
        with card.open("rb") as stream:
            lines = stream.read(MAX_CARD_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    if not lines or lines[0].rstrip() != "---":
        return None
    found: dict[str, str] = {}
    for line in lines[1:]:
        if line.rstrip() == "---":
            # "other" stands for a licence that has no identifier; its name is beside it.
            stated = found.get("license")
            return found.get("license_name", stated) if stated == "other" else stated
        if match := _FIELD.fullmatch(line.split(" #")[0]):
            value = match[2].strip().strip("'\"")
            if _LICENSE.fullmatch(value):
                found[match[1]] = value
    return None
