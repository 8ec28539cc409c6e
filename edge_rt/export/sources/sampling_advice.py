"""Recommended sampling values of a checkpoint: from keys of the GGUF, or from transformers' file beside it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, as_json
from edge_rt.export.sources.gguf_types import GGUFHeader
from edge_rt.export.sources.model_file import open_model_file
from edge_rt.package.sampling import SAMPLING_NAMES, SamplingAdvice, fault
from edge_rt.system.byte_size import show_size
from edge_rt.system.checkpoint_names import GENERATION_FILE
from edge_rt.system.json_files import parse_object

MAX_BESIDE_BYTES: Final = 1 << 20

_KEY: Final = "general.sampling."
_LEAST: Final = 1e-6
"""Least value of numbers that must be above 0, and least distance from 1 of those that must be below 1."""
_FLOATS: Final = {
    "temperature": ("temp", None, 100.0),
    "top_p": ("top_p", _LEAST, 1.0),
    "min_p": ("min_p", None, 1.0 - _LEAST),
    "repetition_penalty": ("penalty_repeat", 0.01, 100.0),
}
"""Option -> key behind ``general.sampling.``, least and largest value. llama.cpp treats values below 0 as 0."""


def read_advice(header: GGUFHeader) -> SamplingAdvice | None:
    """Return a checkpoint's recommended sampling values, first from keys of the file itself; None if there are none."""
    advice = _of_gguf(header)
    return advice if advice is not None else read_advice_file(header.path.parent / GENERATION_FILE)


def _of_gguf(header: GGUFHeader) -> SamplingAdvice | None:
    values: dict[str, Any] = {}
    for name, (key, minimum, maximum) in _FLOATS.items():
        value = header.get_float(_KEY + key, default=None, minimum=minimum, maximum=maximum)
        if value is not None:
            # Stored as float32: 0.8 would be 0.800000011920929.
            values[name] = max(0.0, float(f"{value:.7g}"))
    top_k = header.get_int(_KEY + "top_k", default=None, maximum=(1 << 31) - 1)
    if top_k is not None:
        values["top_k"] = max(0, top_k)
    # A penalty over the last 0 tokens is no penalty.
    if header.get_int(_KEY + "penalty_last_n", default=None) == 0:
        values.pop("repetition_penalty", None)
    return SamplingAdvice(**values) if values else None


def read_advice_file(path: Path) -> SamplingAdvice | None:
    """Return the values in a ``generation_config.json``; None if there is none, or if it names none."""
    if not path.is_file():
        return None
    with open_model_file(path) as stream:
        data = stream.read(MAX_BESIDE_BYTES + 1)
    if len(data) > MAX_BESIDE_BYTES:
        raise _wrong(path, "is too large", f"The limit is {show_size(MAX_BESIDE_BYTES)}.")
    document = parse_object(data, functools.partial(_wrong, path, "is not a JSON object"), is_foreign=True)
    values = {name: document[name] for name in SAMPLING_NAMES if document.get(name) is not None}
    if not values or document.get("do_sample") is False:
        return None
    # transformers and llama.cpp take a negative top-k for none.
    if isinstance(values.get("top_k"), int) and values["top_k"] < 0:
        values["top_k"] = 0
    for name, value in values.items():
        if (wanted := fault(name, value)) is not None:
            raise _wrong(path, f"has a wrong value under '{name}'", f"Found {as_json(value)}, wanted {wanted}.")
    return SamplingAdvice(**values)


def _wrong(path: Path, what: str, numbers: str) -> InvalidModelFile:
    return InvalidModelFile(
        f"{path.name} beside the checkpoint {what}.",
        numbers,
        "Correct the file, or export the checkpoint from a folder without it.",
    )
