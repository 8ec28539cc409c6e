"""Traces a model of transformers to ONNX: a process of its own, and the only module that loads torch.

``python -m edge_rt.export.traced.worker FOLDER OUT`` writes into OUT the traced graph with its weights, the logits that
transformers computes for a few tokens, and ``answer.json``: the numbers of the model, or why there is no graph.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

GRAPH_FILE: Final = "traced.onnx"
LOGITS_FILE: Final = "logits.npy"
ANSWER_FILE: Final = "answer.json"
CHECK_ROWS: Final = 48
"""Tokens whose logits the graph is compared with."""
_TRACED_ROWS: Final = 5
"""Tokens of the prompt that the model is traced with; two more are generated."""
_MAX_MESSAGE: Final = 600


class Refused(Exception):
    """Carries the first two sentences of an error: the model is not one that this route can carry."""


def main(arguments: list[str]) -> int:
    """Trace the model of a folder; the exit code is 0 if an answer was written, also if it is a refusal."""
    folder, out = Path(arguments[0]), Path(arguments[1])
    # Before transformers is imported: nothing is asked of the network, whatever the configuration names.
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    answer: dict[str, Any]
    try:
        answer = _trace(folder, out)
    except Refused as refused:
        answer = {"refused": [_one_line(part) for part in refused.args]}
    except ImportError as error:
        answer = {"missing": _one_line(error)}
    except Exception as error:  # whatever torch or transformers raise is reported as a failure of theirs
        answer = {"failed": f"{type(error).__name__}: {_one_line(_innermost(error))}"}
    (out / ANSWER_FILE).write_text(json.dumps(answer), encoding="utf-8")
    return 0


def _trace(folder: Path, out: Path) -> dict[str, Any]:
    """Write graph and logits, and return the numbers of the model."""
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
    from transformers.exporters import OnnxConfig, OnnxExporter
    from transformers.exporters.exporter_dynamo import get_auto_dynamic_shapes, register_cache_pytrees_for_model
    from transformers.exporters.utils import decompose_prefill_decode

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if getattr(config, "is_encoder_decoder", False):
        raise Refused("is an encoder with a decoder.", "Only models that continue a text are carried.")
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise Refused("has no class that continues a text.", f"Its model_type is {config.model_type!r}.")
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
    ).eval()
    if getattr(model, "_is_stateful", False):
        raise Refused(
            "keeps a state other than keys and values.", f"{type(model).__name__} cannot go back to an earlier token."
        )
    model.config.use_cache = model.config.return_dict = True
    numbers = _numbers(model)
    rows = min(CHECK_ROWS, numbers["context_length"])
    token_ids = [(7 + 9973 * i) % numbers["vocab_size"] for i in range(rows)]
    with torch.no_grad():
        logits = model(torch.tensor([token_ids]), use_cache=False).logits[0].numpy()
    _save(out / LOGITS_FILE, logits)
    ids = torch.arange(_TRACED_ROWS)[None] % numbers["vocab_size"]
    # Of the parts that are traced for a generation, the one that continues a cache also begins an empty one.
    plain = GenerationConfig(do_sample=False, num_beams=1, use_cache=True, pad_token_id=0)
    continued, inputs = decompose_prefill_decode(
        model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, generation_config=plain,
        multi_token_decode=True,
    )["decode"]  # fmt: skip
    exporter = OnnxExporter()
    register_cache_pytrees_for_model(continued)
    # Flags such as use_cache are no inputs of a graph.
    inputs = {name: value for name, value in inputs.items() if not isinstance(value, bool)}
    shapes = _only_lengths(get_auto_dynamic_shapes(inputs))
    program, _ = exporter.export_program(continued, inputs, OnnxConfig(dynamic=True, dynamic_shapes=shapes))
    exporter.save_program(program, out / GRAPH_FILE)
    return {
        "exporter": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "token_ids": token_ids,
        "model": numbers,
    }


def _only_lengths(shapes: Any) -> Any:
    """Return which axes change from pass to pass: those of tokens, not those of batches, heads and their elements."""
    if isinstance(shapes, dict) and shapes and all(isinstance(axis, int) for axis in shapes):
        # Caches have tokens in the last axis but one, everything else in the last.
        length = len(shapes) - (2 if len(shapes) == 4 else 1)
        return {length: shapes[length]}
    if isinstance(shapes, dict):
        return {name: _only_lengths(inner) for name, inner in shapes.items()}
    if isinstance(shapes, list | tuple):
        return type(shapes)(_only_lengths(inner) for inner in shapes)
    return shapes


def _numbers(model: Any) -> dict[str, Any]:
    """Return the dimensions that a manifest states and the graph does not; those that a configuration lacks are 0."""
    config = model.config.get_text_config()

    def number(*names: str) -> int | float:
        found = (getattr(config, name, None) for name in names)
        return next((one for one in found if isinstance(one, int | float) and not isinstance(one, bool) and one), 0)

    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    return {
        "architecture": str(config.model_type),
        "hidden_size": number("hidden_size"),
        "num_heads": number("num_attention_heads"),
        "intermediate_size": number("intermediate_size", "ffn_dim", "n_inner"),
        "vocab_size": number("vocab_size"),
        # Models without a table of positions name the length that they were trained with, or none.
        "context_length": number("max_position_embeddings", "n_positions", "seq_length") or 2048,
        "norm_epsilon": number("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
        "tied_embedding": head is not None and embedding.weight is head.weight,
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def _save(path: Path, array: Any) -> None:
    import numpy as np

    with path.open("wb") as stream:
        np.lib.format.write_array(stream, np.ascontiguousarray(array, np.float32), allow_pickle=False)


def _innermost(error: BaseException) -> BaseException:
    """Return the error that caused the others."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _one_line(text: object) -> str:
    return " ".join(str(text).split())[:_MAX_MESSAGE]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
