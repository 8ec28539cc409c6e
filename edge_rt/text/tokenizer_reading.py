"""What is read of a ``tokenizer.json`` and not kept by the ``tokenizers`` library, and a store of such readings.

Parsing and checking take longer than the library takes to read the file. What comes out is small and depends on the
file's bytes alone, so it can be kept by their hash: a file that is known is not parsed again. Beside it lie the file's
vocabulary and merges in the form that the library reads fastest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers.models import BPE

from edge_rt.errors import StorageError
from edge_rt.system.files import write_atomically
from edge_rt.system.json_files import JsonCache
from edge_rt.text.added_tokens import AddedToken
from edge_rt.text.piece_encoder import (
    Places,
    places_from_json,
    places_to_cut,
    places_to_json,
    reraise_unless_library,
)
from edge_rt.text.token_bytes import BYTE_OF
from edge_rt.text.tokenizer_check import Checked, check_document, parse
from edge_rt.text.tokenizer_steps import Prefix, Steps
from edge_rt.version import VERSION

# Bytes that normalisation can turn into one: at most 4 are known, 8 leaves a margin.
_MAX_COMPOSITION: Final = 8
_FORMAT: Final = 3
"""Of kept readings; another one when what is checked or kept changes."""
_MOST_KEPT: Final = 8
_MOST_BYTES: Final = 32 << 20
"""Of a kept reading: 300 bytes for each added token, of which some models have thousands."""
_MOST_GROUPS: Final = 8
"""The library adds tokens slowly where special ones and others alternate."""


@dataclass(frozen=True)
class Reading:
    """What is read of a ``tokenizer.json``.

    Attributes:
        places: where texts can be cut; None: nowhere.
        longest: most bytes of text that a token stands for.
        missing: the byte values that no token has; they vanish in encoding.
        parts: the file in the form that the library reads fastest; None: it is read as it is.
    """

    checked: Checked
    places: Places | None
    longest: int
    missing: bytes
    parts: LibraryParts | None = None

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

    Raises:
        UnsupportedModel: it is neither BPE over bytes nor BPE with byte fallback.
    """
    return _reading_of(parse(data, name), rows)


def _reading_of(document: Mapping[str, Any], rows: int) -> Reading:
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


@dataclass(frozen=True)
class LibraryParts:
    """A tokenizer in the form that the library reads fastest: it takes half as long as ``tokenizer.json``.

    Attributes:
        added: the added tokens in the order of the document.
        merges: a text file with a merge on every line.
    """

    frame: str
    model: Mapping[str, Any]
    added: Sequence[Mapping[str, Any]]
    vocabulary: Path
    merges: Path
    digests: tuple[str, str]

    @classmethod
    def write(cls, document: Mapping[str, Any], vocabulary: Path, merges: Path) -> LibraryParts | None:
        """Write the parts of a checked document; None if the disk refuses."""
        model = dict(document["model"])
        entries = json.dumps(model.pop("vocab"), ensure_ascii=False).encode("utf-8", "surrogatepass")
        pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in model.pop("merges")]
        lines = "\n".join(pairs).encode("utf-8", "surrogatepass")
        try:
            write_atomically(vocabulary, [entries], durable=False, parents=True)
            write_atomically(merges, [lines], durable=False)
        except StorageError:
            return None
        return cls(
            frame=json.dumps({**document, "model": {**model, "vocab": {}, "merges": []}, "added_tokens": []}),
            model={name: value for name, value in model.items() if name != "type" and value is not None},
            added=[dict(entry) for entry in document.get("added_tokens", ())],
            vocabulary=vocabulary,
            merges=merges,
            digests=(hashlib.sha256(entries).hexdigest(), hashlib.sha256(lines).hexdigest()),
        )

    def make_same(self, data: bytes) -> bool:
        """Return whether the library makes the same of the parts as of the file."""
        try:
            # One after the other: the memory plan has room for one.
            whole = _digest(tokenizers.Tokenizer.from_buffer(data).to_str())
        except BaseException as error:  # panics of the library are not an Exception
            reraise_unless_library(error)
            return False
        made = self.open()
        return made is not None and _digest(made.to_str()) == whole

    def open(self) -> tokenizers.Tokenizer | None:
        """Return the tokenizer; None if a file is not what was written: what is kept is made anew next time."""
        try:
            read = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (self.vocabulary, self.merges)]
        except OSError:
            read = []
        try:
            if tuple(read) != self.digests:
                with suppress(OSError):
                    self.vocabulary.with_suffix(".json").unlink(missing_ok=True)
                return None
            library = tokenizers.Tokenizer.from_str(self.frame)
            library.model = BPE.from_file(str(self.vocabulary), str(self.merges), **self.model)
            for is_special, tokens in groupby(self.added, key=lambda entry: bool(entry.get("special"))):
                made = [_added_token(entry) for entry in tokens]
                (library.add_special_tokens if is_special else library.add_tokens)(made)
        except BaseException as error:  # also of the library, and files that have just been dropped
            reraise_unless_library(error)
            return None
        return library

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, without its files."""
        return {"frame": self.frame, "model": self.model, "added": self.added, "digests": self.digests}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], vocabulary: Path, merges: Path) -> LibraryParts:
        """Return what ``to_json`` has made an object of."""
        digests = tuple(document["digests"])
        return cls(document["frame"], document["model"], document["added"], vocabulary, merges, digests)


def _added_token(entry: Mapping[str, Any]) -> tokenizers.AddedToken:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return tokenizers.AddedToken(entry["content"], **{name: entry[name] for name in names if name in entry})


class KeptReadings:
    """Readings of files that were checked before, by the hash of their bytes; what is damaged is read anew.

    Args:
        folder: folder of the files, of which the oldest are dropped.
    """

    def __init__(self, folder: Path) -> None:
        self._cache = JsonCache(folder, _MOST_BYTES, _MOST_KEPT)

    def read(self, data: bytes, name: str, rows: int) -> Reading:
        """Return the reading of a ``tokenizer.json``, which is kept; arguments and errors as ``read_document``."""
        key = {
            "sha256": hashlib.sha256(data).hexdigest(),
            "rows": rows,
            "format": _FORMAT,
            "edge_rt": VERSION,
            "tokenizers": tokenizers.__version__,
        }
        if (known := self._load(key)) is not None:
            return known
        document: Mapping[str, Any] = parse(data, name)
        reading = _reading_of(document, rows)
        groups = groupby(document.get("added_tokens", ()), key=lambda entry: bool(entry.get("special")))
        parts = LibraryParts.write(document, *self._files(key)) if len(list(groups)) <= _MOST_GROUPS else None
        del document  # large, and what follows needs memory
        if parts is not None and not parts.make_same(data):
            parts = None
        kept = {**reading.to_json(), "parts": None if parts is None else parts.to_json()}
        is_kept = self._cache.save(key, {"reading": kept, "digest": _digest(kept)})
        if parts is None or not is_kept:
            parts = None
            with suppress(OSError):
                for file in self._files(key):
                    file.unlink(missing_ok=True)
        return replace(reading, parts=parts)

    def _files(self, key: Mapping[str, Any]) -> tuple[Path, Path]:
        path = self._cache.path(key)
        return path.with_suffix(".vocab"), path.with_suffix(".merges")

    def _load(self, key: Mapping[str, Any]) -> Reading | None:
        document = self._cache.load(key)
        try:
            # A flipped bit would be another token, and no error.
            if document is None or document["digest"] != _digest(document["reading"]):
                return None
            reading, parts = Reading.from_json(document["reading"]), document["reading"]["parts"]
            return (
                reading if parts is None else replace(reading, parts=LibraryParts.from_json(parts, *self._files(key)))
            )
        except (LookupError, TypeError, ValueError):
            return None


def _digest(document: Mapping[str, Any] | str) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
