"""How a checkpoint makes embeddings of texts: from sentence-transformers' files of a folder, or a GGUF file's keys.

A folder says it in ``modules.json``: a list of steps, of which the second is mostly a pooling with a ``config.json`` of
its own in the folder ``1_Pooling``. Its prompts are in ``config_sentence_transformers.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, as_json
from edge_rt.export.sources.gguf_types import GGUFHeader
from edge_rt.package.manifest import LAST, MAX_PROMPT_CHARACTERS, MAX_PROMPTS, MEAN
from edge_rt.system.checkpoint_names import MODULES_FILE, POOLING_FILE, PROMPTS_FILE, TOKENIZER_FILE, stored_beside
from edge_rt.system.json_files import parse_json, read_bytes

_MOST_BYTES: Final = 1 << 20
_MODES: Final = {"pooling_mode_lasttoken": LAST, "pooling_mode_mean_tokens": MEAN}
_NAMES: Final = {"lasttoken": LAST, "mean": MEAN}
"""The same as ``pooling_mode`` of newer files."""
_GGUF_MODES: Final = {1: MEAN, 3: LAST}


@dataclass(frozen=True)
class PoolingAdvice:
    """What a checkpoint says of its embeddings.

    Attributes:
        mode: ``last`` or ``mean``: whose states they are made of.
        normalises: whether they have the length 1.
        end_token_id: token behind every text; None: there is none.
        prompts: name -> what is put before a text.
        why_not: why the package cannot give them, in words; empty if it can.
    """

    mode: str = LAST
    normalises: bool = True
    end_token_id: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    why_not: str = ""


def read_folder_pooling(folder: Path) -> PoolingAdvice | None:
    """Return what a folder says of embeddings; None if it is not made for them."""
    if not (folder / MODULES_FILE).is_file():
        return None
    modules = _read(folder / MODULES_FILE, list)
    kinds = [str(one.get("type", "")).rpartition(".")[2] if isinstance(one, dict) else "" for one in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        return PoolingAdvice(why_not=f"its steps are {', '.join(kinds)!s:.80}")
    path = stored_beside(folder, POOLING_FILE)
    if path is None:
        return PoolingAdvice(why_not=f"{POOLING_FILE} is missing")
    settings = _read(path, dict)
    modes = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
    named = settings.get("pooling_mode")
    mode = _NAMES.get(str(named)) if named is not None else _MODES.get(modes[0]) if len(modes) == 1 else None
    if mode is None:
        return PoolingAdvice(why_not=f"its pooling is {named or ', '.join(modes)!s:.80}")
    if settings.get("include_prompt", True) is not True:
        return PoolingAdvice(why_not="it leaves the prompt out of its pooling")
    end = _end_token(json.loads((folder / TOKENIZER_FILE).read_text(encoding="utf-8")))
    return PoolingAdvice(mode, kinds[2:] == ["Normalize"], end, _prompts(folder))


def read_gguf_pooling(header: GGUFHeader, end_token_id: int | None) -> PoolingAdvice | None:
    """Return what a GGUF file says of embeddings; None if it is not made for them.

    Args:
        end_token_id: the file's token behind every text; None: there is none.
    """
    architecture = header.get_str("general.architecture", default="")
    mode = _GGUF_MODES.get(header.get_int(f"{architecture}.pooling_type", default=0))
    # The format has no key for the length; llama.cpp makes it 1.
    return None if mode is None else PoolingAdvice(mode, True, end_token_id)


def _read(path: Path, kind: type[Any]) -> Any:
    def refuse(reason: str) -> InvalidModelFile:
        return InvalidModelFile(f"{path.name} cannot be used.", reason, "Fetch the model again.")

    value = parse_json(read_bytes(path, _MOST_BYTES, refuse), refuse)
    if not isinstance(value, kind):
        raise refuse(f"It is {as_json(value)!s:.40}, not a {'list' if kind is list else 'JSON object'}.")
    return value


def _prompts(folder: Path) -> dict[str, str]:
    if not (folder / PROMPTS_FILE).is_file():
        return {}
    given = _read(folder / PROMPTS_FILE, dict).get("prompts")
    found = {
        name: text
        for name, text in (given if isinstance(given, dict) else {}).items()
        if isinstance(text, str) and len(text) <= MAX_PROMPT_CHARACTERS and 0 < len(name) <= MAX_PROMPT_CHARACTERS
    }
    return dict(list(found.items())[:MAX_PROMPTS])


def _end_token(tokenizer: Mapping[str, Any]) -> int | None:
    """Return the token that a tokenizer's last step puts behind a text; None if it puts none there."""
    entry: Callable[[Any, str], Any] = lambda value, key: value.get(key) if isinstance(value, dict) else None  # noqa: E731
    step = tokenizer.get("post_processor")
    steps = entry(step, "processors") or [step]
    for one in steps if isinstance(steps, list) else []:
        pieces = entry(one, "single")
        name = entry(entry(pieces[-1], "SpecialToken"), "id") if isinstance(pieces, list) and pieces else None
        ids = entry(entry(entry(one, "special_tokens"), str(name)), "ids")
        if isinstance(ids, list) and len(ids) == 1 and type(ids[0]) is int:
            return ids[0]
    return None
