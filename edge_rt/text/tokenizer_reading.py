"""What is read of a ``tokenizer.json`` and not kept by the ``tokenizers`` library, and a store of such readings.

Parsing and checking take longer than the library takes to read the file. What comes out is small and depends on the
file's bytes alone, so it can be kept by their hash: a file that is known is not parsed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import tokenizers

from edge_rt.system.json_files import JsonCache
from edge_rt.text.added_tokens import AddedToken
from edge_rt.text.piece_encoder import Places, places_from_json, places_to_cut, places_to_json
from edge_rt.text.token_bytes import BYTE_OF
from edge_rt.text.tokenizer_check import Checked, check_document, parse
from edge_rt.text.tokenizer_steps import Prefix, Steps
from edge_rt.version import VERSION

# Bytes that normalisation can turn into one: at most 4 are known, 8 leaves a margin.
_MAX_COMPOSITION: Final = 8
_FORMAT: Final = 1
"""Of kept readings; another one when what is checked or kept changes."""
_MOST_KEPT: Final = 16


@dataclass(frozen=True)
class Reading:
    """What is read of a ``tokenizer.json``.

    Attributes:
        places: where texts can be cut; None: nowhere.
        longest: most bytes of text that a token stands for.
        missing: the byte values that no token has; they vanish in encoding.
    """

    checked: Checked
    places: Places | None
    longest: int
    missing: bytes

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            **asdict(self.checked),
            "places": places_to_json(self.places),
            "longest": self.longest,
            "missing": list(self.missing),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Reading:
        """Return what ``to_json`` has made an object of."""
        steps = dict(document["steps"])
        for name in ("normalizers", "pre_tokenizers"):
            steps[name] = tuple(steps[name])
        steps["prefix"] = Prefix(**steps["prefix"])
        checked = Checked(
            tuple(AddedToken(**token) for token in document["added"]),
            Steps(**steps),
            document["size"],
            tuple(document["warnings"]),
        )
        places = places_from_json(document["places"])
        return cls(checked, places, document["longest"], bytes(document["missing"]))


def read_document(data: bytes, name: str, rows: int) -> Reading:
    """Parse and check a ``tokenizer.json``.

    Args:
        name: of the file, for errors.
        rows: bound of the vocabulary's ids.

    Raises:
        InvalidTokenizer: the file is malformed or exceeds a limit.
        UnsupportedModel: it is neither BPE over bytes nor BPE with byte fallback.
    """
    document: Mapping[str, Any] = parse(data, name)
    checked = check_document(document, rows)
    vocabulary: Mapping[str, int] = document["model"]["vocab"]
    return Reading(checked, places_to_cut(document, checked.steps), *_bound(vocabulary, checked))


def _bound(vocabulary: Mapping[str, int], checked: Checked) -> tuple[int, bytes]:
    """Return the largest number of bytes of a token, and the byte values that no token contains."""
    steps = checked.steps
    if steps.replaces:
        # Any amount of text can become a single character.
        return 1, bytes(range(256))
    longest = max((len(token.text.encode("utf-8", "surrogatepass")) for token in checked.added), default=0)
    missing = b""
    if steps.is_byte_level:
        longest = max(longest, *map(len, vocabulary))
        missing = bytes(byte for character, byte in BYTE_OF.items() if character not in vocabulary)
    else:
        longest = max(longest, *(len(token.encode("utf-8", "surrogatepass")) for token in vocabulary))
    # Composing characters (Unicode NFC) shortens text as well.
    return longest * (_MAX_COMPOSITION if steps.composes else 1), missing


class KeptReadings:
    """Readings of files that were checked before, by the hash of their bytes; what is damaged is read anew.

    Args:
        folder: folder of the files, of which the oldest are dropped.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cache = JsonCache(folder)

    def read(self, data: bytes, name: str, rows: int) -> Reading:
        """Return the reading of a ``tokenizer.json``, which is kept; arguments and errors as ``read_document``."""
        key = {
            "sha256": hashlib.sha256(data).hexdigest(),
            "rows": rows,
            "format": _FORMAT,
            "edge_rt": VERSION,
            "tokenizers": tokenizers.__version__,
        }
        if (kept := self._load(key)) is not None:
            return kept
        reading = read_document(data, name, rows)
        document = reading.to_json()
        if self._cache.save(key, {"reading": document, "digest": _digest(document)}):
            self._drop_oldest()
        return reading

    def _load(self, key: Mapping[str, Any]) -> Reading | None:
        document = self._cache.load(key)
        try:
            # A flipped bit would be another token, and no error.
            if document is None or document["digest"] != _digest(document["reading"]):
                return None
            return Reading.from_json(document["reading"])
        except (LookupError, TypeError, ValueError):
            return None

    def _drop_oldest(self) -> None:
        try:
            files = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
            for file in files[:-_MOST_KEPT]:
                file.unlink(missing_ok=True)
        except OSError:
            # Another process drops them, too.
            return


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
