"""An object of ``config.json`` that says how weights are quantised, read with checks.

Standard library only: a model that is refused is refused before numpy is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, UnsupportedModel, as_json

OTHER_WAY: Final = "Get the model in BF16 or F16, or as a GGUF file, or quantised to 4 bits by GPTQ or AWQ."
BITS: Final = 4
GROUP_STEP: Final = 32
"""Groups of inputs are multiples of it."""
MAX_GROUP: Final = 1 << 20


class ConfigObject:
    """An object of the configuration."""

    def __init__(self, where: str, key: str, values: object) -> None:
        self.where = where
        if not isinstance(values, dict):
            raise self.wrong(key, values)
        self.values: Mapping[str, Any] = values

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text; the default where it is missing or null."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.wrong(key, value)
        return value

    def integer(self, key: str) -> int:
        """Return a whole number."""
        value = self.values.get(key)
        if type(value) is not int:
            raise self.wrong(key, value)
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a truth value; the default where it is missing or null."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(key, value)
        return value

    def require_bits(self, bits: int) -> None:
        """Refuse codes of other bits."""
        if bits != BITS:
            raise self.refused("bits", str(bits), str(BITS))

    def group(self, size: int) -> int:
        """Return the size of a group, 0 for a whole row."""
        if size == -1:
            return 0
        if not 1 <= size <= MAX_GROUP or size % GROUP_STEP:
            raise self.refused("group_size", str(size), f"-1, and multiples of {GROUP_STEP} up to {MAX_GROUP}")
        return size

    def refused(self, key: str, value: str, taken: str) -> UnsupportedModel:
        """Return the error for a value that is not read; ``taken`` says which are."""
        return UnsupportedModel(
            f"{self.where}: the weights are quantised in a way that edge-rt does not read.",
            f"'{key}' is {value:.60}; edge-rt reads {taken}.",
            OTHER_WAY,
        )

    def wrong(self, key: str, value: object) -> InvalidModelFile:
        """Return the error for a value that is missing or of the wrong type."""
        return InvalidModelFile(
            f"{self.where}: '{key}' of the quantisation in config.json is missing or has the wrong type.",
            f"Found {as_json(value)}.",
            "Fetch the model again.",
        )
