"""Adapters as PEFT and llama.cpp store them, and the arithmetic that merges them, written once more in plain numpy."""

from __future__ import annotations

import dataclasses
import json

import gguf
import numpy as np

from tests.helpers.family_data import FamilyCase, text_tensors
from tests.helpers.family_gguf import ARCHITECTURES, _architecture, _converted
from tests.helpers.hf_factory import write_safetensors

RANK = 4
ALPHA = 0.125
LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
ALL_LINEARS = (*LINEARS, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def sixteenths(generator, *shape):
    """Return numbers of few bits: sums of their products are exact in any order."""
    return (generator.integers(-15, 16, shape) / 16).astype(np.float32)


def low_rank(generator, shape, rank=RANK):
    """Return A and B for a matrix of that shape, ``[rows, inputs]``."""
    return sixteenths(generator, rank, shape[1]), sixteenths(generator, shape[0], rank)


def layer_products(tensors, modules=ALL_LINEARS, *, seed=0, rank=RANK):
    """Return module -> A and B for these modules in all layers of a model, by transformers' names."""
    generator = np.random.default_rng(seed)
    names = [name.removesuffix(".weight") for name in tensors if name.removesuffix(".weight").endswith(modules)]
    return {name: low_rank(generator, tensors[f"{name}.weight"].shape, rank) for name in names}


def peft_tensors(products, *, embeddings=(), wholes=None):
    """Return the tensors of an adapter by PEFT's names; modules among ``embeddings`` have those of an embedding."""
    found = {}
    for module, (a, b) in products.items():
        if module in embeddings:
            # The product of an embedding is added to its transpose.
            found |= {f"{module}.lora_embedding_A": np.ascontiguousarray(b.T)}
            found |= {f"{module}.lora_embedding_B": np.ascontiguousarray(a.T)}
        else:
            found |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    return {f"base_model.model.{name}": values for name, values in (found | (wholes or {})).items()}


def write_peft(folder, tensors, *, dtype="F32", **config):
    """Write a folder as PEFT does; ``config`` are keys of its settings."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "someone/model"}
    settings |= {"r": RANK, "lora_alpha": ALPHA, "use_rslora": False, "use_dora": False, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    write_safetensors(folder / "adapter_model.safetensors", tensors, dtype)
    return folder


def write_gguf_adapter(
    path, pairs, *, alpha=ALPHA, architecture="llama", kind="lora", extra=None, vectors=None, numbers=None
):
    """Write a GGUF file as llama.cpp's converter does: tensor -> A and B, with its names and its order of rows."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", alpha)
    for key, values in (extra or {}).items():
        writer.add_array(key, values)
    for key, number in (numbers or {}).items():
        writer.add_uint16(key, number)
    for name, (a, b) in pairs.items():
        writer.add_tensor(f"{name}.lora_a", np.ascontiguousarray(a.T) if name == "token_embd.weight" else a)
        writer.add_tensor(f"{name}.lora_b", b)
    for name, values in (vectors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merged(tensors, products, scale=ALPHA / RANK):
    """Return the tensors of a model with an adapter's products added."""
    found = dict(tensors)
    for module, (a, b) in products.items():
        found[f"{module}.weight"] = found[f"{module}.weight"] + np.float32(scale) * (b @ a)
    return found


@dataclasses.dataclass(frozen=True)
class MergedCase(FamilyCase):
    """A family's case with an adapter's products added."""

    products: dict = dataclasses.field(default_factory=dict)

    def tensors(self):
        """Return all tensors of the folder."""
        return merged(super().tensors(), self.products)


def merged_case(case, products):
    """Return a case with products added."""
    return MergedCase(**vars(case), products=products)


def gguf_pairs(case, products):
    """Return an adapter's A and B as a converter to GGUF writes them, by its names."""
    config = case.text_config
    arch = ARCHITECTURES[config["model_type"]]
    names = gguf.get_tensor_name_map(_architecture(arch), config["num_hidden_layers"])
    return arch, {
        f"{names.get_name(module)}.weight": (a, _converted(f"{module}.weight", b, arch, config))
        for module, (a, b) in text_tensors(products).items()
    }
