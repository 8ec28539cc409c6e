"""Checks the contents of a ``tokenizer.json`` before the ``tokenizers`` library sees a byte of it.

The library is fast and written for files that its own tools made. With others it can panic, backtrack for hours in a
regular expression, or silently renumber tokens; so sizes, structure, ids, merges and patterns are checked here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final, cast

from edge_rt.errors import InvalidTokenizer, UnsupportedModel, kind_of
from edge_rt.system.json_files import parse_object, read_bytes
from edge_rt.text.added_tokens import AddedToken, added_token
from edge_rt.text.token_bytes import BYTE_OF
from edge_rt.text.tokenizer_steps import Steps, check_steps

MAX_FILE_BYTES: Final = 128 * 1024 * 1024
MAX_VOCABULARY: Final = 1_000_000
MAX_TOKEN_BYTES: Final = 4096
MAX_ADDED_TOKENS: Final = 10_000
# A vocabulary of 10^6 has 10^6 merges (one array each) and four million commas; Python needs about 60 bytes for each.
_MAX_JSON_CONTAINERS: Final = 3_000_000
_MAX_JSON_COMMAS: Final = 8_000_000
# An added token is looked for by its length, once for every length that there is.
_MAX_ADDED_LENGTHS: Final = 256
_BYTE_TOKEN: Final = re.compile("<0x[0-9A-F]{2}>")

FETCH_AGAIN: Final = "Fetch the model again, from a trusted source."
_WHY_NOT: Final = {
    "Unigram": "Unigram chooses tokens by the probability of a whole text, which cannot be cut into pieces",
    "WordPiece": "WordPiece loses white space, so an answer could not be shown as it was written",
    "WordLevel": "WordLevel has no token for unknown words",
}


@dataclass(frozen=True)
class Checked:
    """What a checked file says.

    Attributes:
        added: its added tokens, each once; those that the vocabulary has under another id have the vocabulary's.
        size: the highest id of all tokens, and one; there may be ids without a token below.
        warnings: what was found and read in another way than it is written, one sentence each.
    """

    added: tuple[AddedToken, ...]
    steps: Steps
    size: int
    warnings: tuple[str, ...]


def invalid(what: str, numbers: str, action: str = FETCH_AGAIN) -> InvalidTokenizer:
    """Return the error for a damaged or hostile tokenizer."""
    return InvalidTokenizer(what, numbers, action)


def read_file(path: Path) -> bytes:
    """Return the contents of a ``tokenizer.json``."""
    return read_bytes(path, MAX_FILE_BYTES, functools.partial(invalid, f"{path.name} is too large."))


def parse(data: bytes, name: str) -> dict[str, object]:
    """Parse JSON of bounded size and structure, with unique keys."""
    # Counting bytes costs milliseconds and bounds what the parser below can allocate.
    for what, found, limit in (
        ("arrays and objects", data.count(b"{") + data.count(b"["), _MAX_JSON_CONTAINERS),
        ("values", data.count(b","), _MAX_JSON_COMMAS),
        ("added tokens", data.count(b'"content"'), MAX_ADDED_TOKENS + 1000),
    ):
        if found > limit:
            raise invalid(f"{name} has too many {what}.", f"About {found} of at most {limit}.")
    return parse_object(data, functools.partial(invalid, f"{name} is not a JSON object."))


def check_document(document: Mapping[str, object], rows: int) -> Checked:
    """Check everything that the library would trust.

    Args:
        rows: bound of the vocabulary's ids. Added tokens may have higher ones.
    """
    model = _object(document, "model")
    kind = model.get("type", "BPE")
    if kind != "BPE":
        raise UnsupportedModel(
            f"The tokenizer model {str(kind)[:40]!r} is not supported.",
            f"Supported: 'BPE' over bytes or with byte fallback; {_WHY_NOT.get(str(kind), 'others are unknown')}.",
            "Use a model with such a tokenizer.",
        )
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise UnsupportedModel(
                f"The tokenizer uses '{key}', which is not supported.",
                f"It is {str(model[key])[:40]!r}.",
                "Use another model.",
            )
    vocabulary = _check_vocabulary(_object(model, "vocab"))
    _check_merges(model.get("merges"), vocabulary)
    added, warnings = _check_added(document.get("added_tokens", []), vocabulary)
    last = max(vocabulary.values())
    if last >= rows:
        raise invalid("The token ids exceed the embedding matrix.", f"Ids up to {last}, {rows} rows.")
    ids = set(vocabulary.values()) | {token.token_id for token in added}
    size = max(ids) + 1
    if len(ids) < size:
        warnings.append(f"The tokenizer has no token for {size - len(ids)} of the ids below {size}.")
    steps = check_steps(document)
    if steps.is_byte_level and model.get("byte_fallback"):
        warnings.append(_fallback_warning(vocabulary))
    return Checked(added, steps, size, tuple(warnings))


def _fallback_warning(vocabulary: Mapping[str, int]) -> str:
    """Return the warning about byte fallback in a vocabulary over bytes, where it never comes to it."""
    missing = [byte for character, byte in BYTE_OF.items() if character not in vocabulary]
    if missing and any(_BYTE_TOKEN.fullmatch(token) for token in vocabulary):
        raise UnsupportedModel(
            "The tokenizer writes some bytes by 'byte_fallback', which is not supported for vocabularies over bytes.",
            f"{len(missing)} bytes have no token of their own, and there are tokens such as '<0x00>'.",
            "Use another model.",
        )
    return "The tokenizer's 'byte_fallback' has no effect: its vocabulary is over bytes."


def _object(parent: Mapping[str, object], key: str) -> dict[str, object]:
    value = parent.get(key)
    if not isinstance(value, dict):
        raise invalid(f"The tokenizer's '{key}' is not an object.", f"It is {kind_of(value)}.")
    return value


def _check_token(text: object, token_id: object) -> tuple[str, int]:
    if not isinstance(text, str):
        raise invalid("A token is not text.", f"Id {str(token_id)[:20]} has {kind_of(text)}.")
    if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < MAX_VOCABULARY:
        raise invalid("A token id is out of range.", f"{text[:40]!r}: {repr(token_id)[:20]}, limit {MAX_VOCABULARY}.")
    if len(text) > MAX_TOKEN_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_TOKEN_BYTES:
        raise invalid("A token is too long.", f"Id {token_id}: more than {MAX_TOKEN_BYTES} bytes.")
    return text, token_id


def _check_vocabulary(vocabulary: Mapping[str, object]) -> dict[str, int]:
    if not 0 < len(vocabulary) <= MAX_VOCABULARY:
        raise invalid("The vocabulary is empty or too large.", f"{len(vocabulary)} tokens, limit {MAX_VOCABULARY}.")
    result = _quickly_checked(vocabulary)
    if result is None:
        result = dict(_check_token(text, token_id) for text, token_id in vocabulary.items())
    if len(set(result.values())) != len(result):
        raise invalid("Two tokens share one id.", f"{len(result)} tokens, {len(set(result.values()))} ids.")
    return result


def _quickly_checked(vocabulary: Mapping[str, object]) -> dict[str, int] | None:
    """Return the vocabulary if a fast check finds it valid; a loop over all tokens takes ten times as long."""
    ids = vocabulary.values()
    # A character takes 4 bytes at most.
    if set(map(type, ids)) != {int} or 4 * max(map(len, vocabulary)) > MAX_TOKEN_BYTES:
        return None
    numbers = cast("dict[str, int]", vocabulary)
    return numbers if min(numbers.values()) >= 0 and max(numbers.values()) < MAX_VOCABULARY else None


def _check_merges(merges: object, vocabulary: Mapping[str, int]) -> None:
    if not isinstance(merges, list):
        raise invalid("The tokenizer's 'merges' are not an array.", f"Found {kind_of(merges)}.")
    if _are_clearly_merges(merges, vocabulary):
        return
    for index, merge in enumerate(merges):
        parts: Sequence[object] = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2:
            raise invalid("A merge is malformed.", f"Merge {index} is {str(merge)[:60]!r}.")
        left, right = parts
        if not (isinstance(left, str) and isinstance(right, str) and left in vocabulary and right in vocabulary):
            raise invalid("A merge names a token that does not exist.", f"Merge {index}: {str(merge)[:60]!r}.")
        if left + right not in vocabulary:
            raise invalid("A merge makes a token that does not exist.", f"Merge {index}: {str(merge)[:60]!r}.")


def _are_clearly_merges(merges: list[object], vocabulary: Mapping[str, int]) -> bool:
    """Return whether all merges are valid; if not, the loop in ``_check_merges`` finds the wrong one."""
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    if not set(map(type, pairs)) <= {list}:
        return False
    parts = list(chain.from_iterable(cast("list[list[object]]", pairs)))
    if not set(map(type, parts)) <= {str} or not set(map(len, cast("list[list[str]]", pairs))) <= {2}:
        return False
    results = map("".join, cast("list[list[str]]", pairs))
    return vocabulary.keys() >= set(parts) and all(map(vocabulary.__contains__, results))


def _check_added(added: object, vocabulary: Mapping[str, int]) -> tuple[tuple[AddedToken, ...], list[str]]:
    """Return the added tokens, each once, and warnings about them."""
    if not isinstance(added, list):
        raise invalid("The tokenizer's 'added_tokens' are not an array.", f"Found {kind_of(added)}.")
    if len(added) > MAX_ADDED_TOKENS:
        raise invalid("The tokenizer has too many added tokens.", f"{len(added)} of at most {MAX_ADDED_TOKENS}.")
    found: dict[str, AddedToken] = {}
    taken: set[int] = set()
    spelled = {token_id: text for text, token_id in vocabulary.items()}
    repeated = 0
    moved: list[str] = []
    for entry in added:
        if not isinstance(entry, dict):
            raise invalid("An added token is not an object.", f"{str(entry)[:60]!r}.")
        text, token_id = _check_token(entry.get("content"), entry.get("id"))
        if not text:
            raise invalid("An added token is empty.", f"Id {token_id}.")
        if text.isspace() and entry.get("special"):
            raise invalid("A special token is white space.", f"Id {token_id}: {text[:40]!r}.")
        if spelled.get(token_id, text) != text:
            raise invalid("Two tokens share one id.", f"Id {token_id}: {text[:40]!r} and {spelled[token_id][:40]!r}.")
        token = added_token(entry)
        if (own := vocabulary.get(text, token_id)) != token_id:
            token = _with_own_id(token, own)
            moved.append(f"{text[:40]!r} ({token_id}, in the vocabulary {own})")
        if found.get(text) == token:
            repeated += 1
            continue
        if text in found or token.token_id in taken:
            raise invalid("An added token occurs twice, with differences.", f"Id {token_id}: {text[:40]!r}.")
        found[text] = token
        taken.add(token.token_id)
    lengths = len(set(map(len, found)))
    if lengths > _MAX_ADDED_LENGTHS:
        raise invalid("The added tokens have too many lengths.", f"{lengths} of at most {_MAX_ADDED_LENGTHS}.")
    warnings = [f"{repeated} added tokens of the tokenizer are listed again: this changes nothing."] if repeated else []
    if moved:
        named = ", ".join(moved[:3]) + (f" and {len(moved) - 3} more" if len(moved) > 3 else "")
        warnings.append(f"Added tokens have an id of their own, but the vocabulary's counts: {named}.")
    return tuple(found.values()), warnings


def _with_own_id(token: AddedToken, own: int) -> AddedToken:
    """Return an added token with the id that the vocabulary has for its text: the library takes that one."""
    if token.special:
        raise invalid(
            "A special token has two ids.",
            f"{token.text[:40]!r} is {token.token_id} among the added tokens and {own} in the vocabulary.",
            "Correct tokenizer.json: the model was trained with one of them.",
        )
    return replace(token, token_id=own, is_word=token.text.isalnum())
