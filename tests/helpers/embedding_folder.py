"""Small random checkpoints that are made for embeddings, as sentence-transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import load_file, save_file

from tests.helpers.family_cases import load_case, write_folder

END = "<|endoftext|>"
END_ID = 0


def write_embedding_folder(
    path: Path, case: str = "qwen3", *, mode: str = "lasttoken", modules=("Transformer", "Pooling", "Normalize"),
    prefix: bool = True, adds_end: bool = True,
) -> Path:  # fmt: skip
    """Write a family case as a checkpoint for embeddings.

    Args:
        mode: as in the name of ``pooling_mode_...``.
        prefix: whether names of tensors begin with ``model.``.
        adds_end: whether the tokenizer puts ``END`` behind every text.
    """
    write_folder(path, load_case(case))
    if not prefix:
        tensors = load_file(path / "model.safetensors")
        save_file({name.removeprefix("model."): values for name, values in tensors.items()}, path / "model.safetensors")
    steps = [
        {"idx": index, "name": str(index), "path": f"{index}_{kind}" if index else "",
         "type": f"sentence_transformers.models.{kind}"}
        for index, kind in enumerate(modules)
    ]  # fmt: skip
    (path / "modules.json").write_text(json.dumps(steps))
    (path / "1_Pooling").mkdir()
    kinds = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    settings = {f"pooling_mode_{kind}": kind == mode for kind in kinds} | {"include_prompt": True}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    prompts = {"prompts": {"query": "Find: ", "document": ""}, "default_prompt_name": None}
    (path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    if adds_end:
        tokenizer = json.loads((path / "tokenizer.json").read_text())
        text = {"Sequence": {"id": "A", "type_id": 0}}
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [text, {"SpecialToken": {"id": END, "type_id": 0}}],
            "pair": [text, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {END: {"id": END, "ids": [END_ID], "tokens": [END]}},
        }
        (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path
