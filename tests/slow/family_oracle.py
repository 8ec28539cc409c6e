"""Makes ``tests/data/families``: tiny models of transformers' own classes, and their logits in float32.

Needs torch, transformers and safetensors (torch 2.13.0, transformers 5.23.0 were used)::

    python -m tests.slow.family_oracle                    # write all cases
    python -m tests.slow.family_oracle --check            # compare with the stored files instead
    python -m tests.slow.family_oracle --only qwen3 gemma2

Every case is computed in one pass, in two passes with a cache, and from folders in the older keys of ``config.json``,
with and without those that say what transformers assumes. All must agree.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open

from tests.helpers.family_cases import write_folder
from tests.helpers.family_data import DATA, FamilyCase, checksum, load_case
from tests.slow.family_configs import CONFIGS, TOKENS, CaseConfig

CHUNKS = (20, TOKENS - 20)
AGREEMENT = 2e-5
REPRODUCED = 1e-5


def make(name: str, made: CaseConfig, folder: Path) -> FamilyCase:
    """Return a case computed anew; ``folder`` is for files in between."""
    model_class = getattr(transformers, made.model_class or made.model + "ForCausalLM")
    config = getattr(transformers, made.model + "Config")(**made.config)
    model = model_class(config)
    model.save_pretrained(folder / "random")
    document = json.loads((folder / "random" / "config.json").read_text())
    document["dtype"] = "bfloat16"
    with safe_open(folder / "random" / "model.safetensors", "np") as stored:
        shapes = {key: tuple(stored.get_slice(key).get_shape()) for key in stored.keys()}  # noqa: SIM118
    old = older(document, made.old)
    rng = np.random.default_rng(len(name))
    vocabulary = document.get("text_config", document)["vocab_size"]
    tokens = rng.integers(3, vocabulary, TOKENS)
    empty = np.zeros((0, 0), np.float32)
    case = FamilyCase(name, document, old, shapes, tokens, empty, made.gguf, defaults_in(old, config))

    logits = run(model_class, write_folder(folder / "new", case), tokens, (TOKENS,))
    require(f"{name}: in two passes", logits, run(model_class, folder / "new", tokens, CHUNKS), AGREEMENT)
    variants: dict[str, dict[str, Any]] = {
        "older keys": {"dtype": "BF16", "old_keys": True}, "without defaults": {"drop_defaults": True},
    }  # fmt: skip
    if "text_config" in document:
        variants["model first"] = {"model_first": True}
    for what, options in variants.items():
        written = write_folder(folder / what, case, **options)
        require(f"{name}: {what}", logits, run(model_class, written, tokens, (TOKENS,)), AGREEMENT)
    return replace(case, logits=logits)


def defaults_in(old: dict[str, Any], config: Any) -> tuple[str, ...]:
    """Return the keys of a ``config.json`` whose values a configuration without arguments has too."""
    text = config.get_text_config()
    default = older(type(text)().to_dict(), {})
    written = old.get("text_config", old)
    fixed = ("model_type", "architectures", "transformers_version", "torch_dtype")
    return tuple(sorted(key for key in written if key not in fixed and default.get(key, ...) == written[key]))


def run(model_class: Any, folder: Path, tokens: np.ndarray, chunks: tuple[int, ...]) -> np.ndarray:
    """Return the logits of a folder in float32, the tokens given in chunks."""
    model, info = model_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    lacking = {key: value for key, value in info.items() if value}
    if lacking:
        raise SystemExit(f"{folder}: transformers reports {lacking}")
    model.eval()
    cache = transformers.DynamicCache(config=model.config) if len(chunks) > 1 else None
    pieces, at = [], 0
    with torch.inference_mode():
        for count in chunks:
            ids = torch.tensor(tokens[None, at : at + count])
            out = model(input_ids=ids, past_key_values=cache, use_cache=cache is not None)
            pieces.append(out.logits[0].numpy())
            at += count
    return np.concatenate(pieces).astype(np.float32)


def older(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a ``config.json`` in the keys of releases before transformers 5."""
    if "text_config" in document:
        text = older(document["text_config"], changes)
        return {key: value for key, value in document.items() if key != "dtype"} | {
            "text_config": text, "torch_dtype": document["dtype"], "transformers_version": "4.50.0"}  # fmt: skip
    old = {key: value for key, value in document.items() if key not in ("rope_parameters", "dtype")}
    old |= {"torch_dtype": document.get("dtype", "bfloat16"), "transformers_version": "4.50.0"}
    parameters = dict(document.get("rope_parameters") or {})
    if parameters and "full_attention" not in parameters:
        for key in ("rope_theta", "partial_rotary_factor"):
            if key in parameters:
                old[key] = parameters.pop(key)
        if parameters.get("rope_type") in ("linear", "longrope", "dynamic"):
            parameters["type"] = parameters.pop("rope_type")  # as releases of their time say
        if "original_max_position_embeddings" in old:
            parameters.pop("original_max_position_embeddings", None)
        plain = parameters.get("rope_type") == "default"
        old["rope_scaling"] = None if plain else parameters
    old |= changes
    return {key: value for key, value in old.items() if not (key in changes and value is None)}


def require(what: str, expected: np.ndarray, found: np.ndarray, limit: float) -> None:
    error = relative_error(expected, found)
    if not error <= limit:
        raise SystemExit(f"{what}: relative error {error:.2e}, at most {limit:.0e}")


def relative_error(expected: np.ndarray, found: np.ndarray) -> float:
    """Return the largest difference over the largest value."""
    return float(np.abs(expected - found).max() / np.abs(expected).max())


def store(case: FamilyCase) -> None:
    """Write the files of a case."""
    document = {
        "config": case.config,
        "old_config": case.old_config,
        "default_keys": list(case.default_keys),
        "gguf": case.gguf,
        "checksum": checksum(case.tensors()),
        "tensors": {name: list(shape) for name, shape in case.shapes.items()},
    }
    text = json.dumps(document, indent=1)
    (DATA / f"{case.name}.json").write_text(text + "\n")
    np.savez_compressed(DATA / f"{case.name}.npz", tokens=case.tokens, logits=case.logits)


def compare(case: FamilyCase) -> None:
    """Require the stored files to hold what was computed anew."""
    stored = load_case(case.name)
    # The version that wrote a configuration may be another.
    version = {"transformers_version": case.config.get("transformers_version")}
    if {**stored.config, **version} != {**case.config, **version}:
        raise SystemExit(f"{case.name}: config differs from the stored one")
    for what in ("old_config", "shapes", "gguf", "default_keys"):
        if getattr(stored, what) != getattr(case, what):
            raise SystemExit(f"{case.name}: {what} differs from the stored one")
    if not np.array_equal(stored.tokens, case.tokens):
        raise SystemExit(f"{case.name}: the tokens differ from the stored ones")
    require(f"{case.name}: stored", stored.logits, case.logits, REPRODUCED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", choices=sorted(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--check", action="store_true", help="compare with the stored files, write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            case = make(name, CONFIGS[name], Path(folder))
        (compare if arguments.check else store)(case)
        print(f"{name}: {len(case.shapes)} tensors, logits {case.logits.std():.2f} ({case.logits.max():.1f})",
              file=sys.stderr)  # fmt: skip


if __name__ == "__main__":
    main()
