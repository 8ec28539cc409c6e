"""Rewrites a llama GGUF as floats whose channels are permuted: the same function, and no block lies on its old grid.

Hidden channels, feed-forward channels and, within a head, the channels of values are permuted; queries and keys keep
their rows. Quantising the result starts from scratch, whatever the checkpoint was quantised to before.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize

from edge_rt.export.opening import open_checkpoint
from edge_rt.export.weights.blocks import unpermuted_rows

_HF_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_HF_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


class PermutedModel:
    """A tied llama model with permuted channels, rounded to bfloat16.

    Args:
        path: a GGUF file with a tied head and no biases.
        seed: of the permutations.
    """

    def __init__(self, path: Path, seed: int = 7) -> None:
        self._path = path
        self._source, self.config = open_checkpoint(path)
        if not self.config.is_tied:
            raise SystemExit("The model's head is not tied to its embedding.")
        self._reader = gguf.GGUFReader(path)
        self._rng = np.random.default_rng(seed)
        values = {tensor.name: _values(tensor) for tensor in self._reader.tensors}
        self.tensors = {name: _as_bfloat16(rows) for name, rows in self._permuted(values).items()}

    def _permuted(self, values: dict) -> dict:
        config, rng = self.config, self._rng
        hidden = rng.permutation(config.hidden_size)
        group, dim = config.num_heads // config.num_kv_heads, config.head_dim
        out = {
            "token_embd.weight": values["token_embd.weight"][:, hidden],
            "output_norm.weight": values["output_norm.weight"][hidden],
        }
        for layer in range(config.num_layers):
            inner = rng.permutation(config.intermediate_size)
            within = [rng.permutation(dim) for _ in range(config.num_kv_heads)]
            rows = np.concatenate([head * dim + order for head, order in enumerate(within)])
            columns = np.concatenate([head * dim + within[head // group] for head in range(config.num_heads)])

            def of(kind: str, layer: int = layer) -> np.ndarray:
                return values[f"blk.{layer}.{kind}.weight"]

            new = {
                "attn_norm": of("attn_norm")[hidden],
                "ffn_norm": of("ffn_norm")[hidden],
                "attn_q": of("attn_q")[:, hidden],
                "attn_k": of("attn_k")[:, hidden],
                "attn_v": of("attn_v")[rows][:, hidden],
                "attn_output": of("attn_output")[hidden][:, columns],
                "ffn_gate": of("ffn_gate")[inner][:, hidden],
                "ffn_up": of("ffn_up")[inner][:, hidden],
                "ffn_down": of("ffn_down")[hidden][:, inner],
            }
            out |= {f"blk.{layer}.{kind}.weight": rows for kind, rows in new.items()}
        return out

    def write_gguf(self, path: Path) -> None:
        """Write a BF16 GGUF file with the checkpoint's metadata."""
        writer = gguf.GGUFWriter(path, "llama")
        for field in self._reader.fields.values():
            if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
                continue
            if field.types[0] == gguf.GGUFValueType.ARRAY:
                writer.add_array(field.name, field.contents())
            else:
                writer.add_key_value(field.name, field.contents(), field.types[0])
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
        for name, rows in self.tensors.items():
            if rows.ndim == 1:
                writer.add_tensor(name, rows.astype(np.float32))
            else:
                writer.add_tensor(name, _halves(rows).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def write_folder(self, folder: Path) -> None:
        """Write a folder as transformers does: queries and keys in split-half order."""
        folder.mkdir(parents=True, exist_ok=True)
        config, stored = self.config, {}
        orders = {
            "attn_q": unpermuted_rows(config.num_heads, config.head_dim),
            "attn_k": unpermuted_rows(config.num_kv_heads, config.head_dim),
        }
        for name, rows in self.tensors.items():
            if name in _HF_TOP:
                stored[_HF_TOP[name]] = rows
                continue
            _, layer, kind, _ = name.split(".")
            ordered = rows[orders[kind]] if kind in orders else rows
            stored[f"model.layers.{layer}.{_HF_LAYER[kind]}.weight"] = ordered
        _write_safetensors(stored, folder / "model.safetensors")
        tokenizer = self._source.build_tokenizer(config.vocab_size)
        (folder / "tokenizer.json").write_text(tokenizer.json_text, encoding="utf-8")
        if tokenizer.chat_template is not None:
            (folder / "chat_template.jinja").write_text(tokenizer.chat_template, encoding="utf-8")
        document = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim,
            "vocab_size": config.vocab_size, "max_position_embeddings": config.context_length,
            "rms_norm_eps": config.norm_epsilon, "rope_theta": config.ropes[0].base, "tie_word_embeddings": True,
            "bos_token_id": tokenizer.bos_token_id, "eos_token_id": list(tokenizer.eos_token_ids),
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")


def _values(tensor: gguf.ReaderTensor) -> np.ndarray:
    shape = tuple(int(size) for size in tensor.shape)[::-1]
    return dequantize(tensor.data, tensor.tensor_type).reshape(shape).astype(np.float32)


def _as_bfloat16(rows: np.ndarray) -> np.ndarray:
    """Round to the nearest bfloat16, ties to even; the result is float32."""
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _halves(rows: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(rows).view(np.uint32) >> 16).astype(np.uint16)


def _write_safetensors(tensors: dict, path: Path) -> None:
    """Write bfloat16, which numpy's side of safetensors does not know."""
    header, at = {}, 0
    for name, rows in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(rows.shape), "data_offsets": [at, at + 2 * rows.size]}
        at += 2 * rows.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for rows in tensors.values():
            stream.write(_halves(rows).tobytes())
