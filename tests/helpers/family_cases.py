"""Small models of many families as files: folders of transformers, and GGUF files in llama.cpp's conventions.

::

    case = load_case("gemma3_text")
    write_folder(tmp_path / "folder", case, dtype="BF16")
    write_gguf(tmp_path / "model.gguf", case)          # where case.gguf is None
    case.tokens, case.logits                           # what transformers computes, float32
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.helpers.family_data import CASES, FamilyCase, load_case
from tests.helpers.family_gguf import write_gguf
from tests.helpers.gguf_factory import CHATML, SPECIAL_TOKENS, vocabulary
from tests.helpers.hf_factory import write_safetensors

__all__ = ["CASES", "FamilyCase", "load_case", "write_config", "write_folder", "write_gguf"]

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def write_folder(
    path: Path,
    case: FamilyCase,
    *,
    dtype: str = "F32",
    old_keys: bool = False,
    drop_defaults: bool = False,
    model_first: bool = False,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a case as a folder of transformers and return its path.

    Args:
        path: folder to make.
        case: what to write.
        dtype: "F32", "BF16" or "F16"; all three hold the values exactly.
        old_keys: write ``config.json`` as releases before transformers 5 did.
        drop_defaults: write the older keys, without those that transformers does not need (``case.default_keys``).
        model_first: name the tensors of a model of text and images ``model.language_model.*`` and
            ``model.vision_tower.*`` instead of ``language_model.model.*`` and ``vision_tower.*``; both are met.
        config: keys of ``config.json`` to add or replace, or to leave out where they are None.
    """
    path.mkdir(parents=True)
    write_config(path, case, dtype=dtype, old_keys=old_keys, drop_defaults=drop_defaults, config=config)
    (path / "tokenizer.json").write_text(tokenizer_json(case.text_config["vocab_size"]))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": CHATML}))
    tensors = case.tensors()
    if model_first:
        tensors = {_model_first(name): values for name, values in tensors.items()}
    write_safetensors(path / "model.safetensors", tensors, dtype)
    return path


def write_config(
    path: Path,
    case: FamilyCase,
    *,
    dtype: str = "F32",
    old_keys: bool = False,
    drop_defaults: bool = False,
    config: dict[str, Any] | None = None,
) -> None:
    """Write ``config.json`` into a folder; arguments as of ``write_folder``."""
    document = json.loads(json.dumps(case.old_config if old_keys or drop_defaults else case.config))
    document["torch_dtype" if "torch_dtype" in document else "dtype"] = _DTYPES[dtype]
    for key in case.default_keys if drop_defaults else ():
        del document.get("text_config", document)[key]
    document |= config or {}
    document = {key: value for key, value in document.items() if value is not None or key not in (config or {})}
    (path / "config.json").write_text(json.dumps(document, indent=2))


def _model_first(name: str) -> str:
    if name.startswith("language_model.model."):
        return "model.language_model." + name.removeprefix("language_model.model.")
    return name.removeprefix("language_model.") if name.startswith("language_model.") else "model." + name


def tokenizer_json(size: int) -> str:
    """Return a ``tokenizer.json``: byte-level BPE of ``size`` tokens."""
    tokens, merges = vocabulary(size)
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    return tokenizer.to_str()
