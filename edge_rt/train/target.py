"""The model's side of training: embeddings, rows of its LM head, and the logits that it gives for a hidden state."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from edge_rt.errors import UnsupportedModel
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.reader import Package
from edge_rt.train.batch import link_weights

DOMAIN = "edge_rt"
_PIECE = 4096


@dataclass(frozen=True)
class TargetModel:
    """What a head imitates.

    Attributes:
        embedding: float32 ``[vocabulary, hidden_size]``, scaled as the model scales it.
        kept: int64 ``[kept]``, ids of the reduced vocabulary.
        head: float32 ``[kept, hidden_size]``, their rows of the LM head.
        norm: float32 ``[hidden_size]``, the weight of the final norm.
        norm_bias: the same of a LayerNorm; None for an RMSNorm.
        scale, softcap: of the logits; a softcap of 0 is none.
    """

    embedding: Tensor
    kept: Tensor
    head: Tensor
    norm: Tensor
    norm_bias: Tensor | None
    epsilon: float
    scale: float
    softcap: float

    def logits(self, hidden: Tensor, head: Tensor | None = None) -> Tensor:
        """Return the model's logits, float32 ``[rows, tokens]``, from hidden states before the final norm.

        Args:
            hidden: float32 ``[rows, hidden_size]``.
            head: rows of the LM head, float32 ``[tokens, hidden_size]``; None: those of the kept tokens.
        """
        size = (hidden.shape[-1],)
        if self.norm_bias is None:
            normed = functional.rms_norm(hidden, size, self.norm, self.epsilon)
        else:
            normed = functional.layer_norm(hidden, size, self.norm, self.norm_bias, self.epsilon)
        return self.capped(functional.linear(normed, self.head if head is None else head))

    def capped(self, products: Tensor) -> Tensor:
        """Return logits from products with the LM head's rows."""
        scaled = self.scale * products
        return self.softcap * torch.tanh(scaled / self.softcap) if self.softcap else scaled


def read_target(package: Package, kept: npt.NDArray[np.int64]) -> TargetModel:
    """Read what training needs of a package."""
    config = package.manifest.model
    first, last = (ir.load(package.file(package.manifest.segments[place].graph)).graph for place in (0, -1))
    embed = next(node for node in first if node.op_type == "QuantEmbed")
    head = next(node for node in last if node.outputs[0].name == "logits")
    inputs = [*head.inputs, *[None] * (8 - len(head.inputs))]
    if inputs[3] is not None:
        raise UnsupportedModel(
            "A draft head cannot be trained for this model.", "Its LM head adds a bias.", "Use another drafter."
        )
    attributes = {name: value.value for name, value in head.attributes.items()}
    everything = np.arange(config.vocab_size)
    embedding = _rows(package, embed.inputs[1], {n: a.value for n, a in embed.attributes.items()}, everything)
    wanted = ("format", "out_features", "in_features")
    norm, bias = (_vector(package, inputs[place]) for place in (2, 7))
    assert norm is not None, "the final norm has a weight"
    return TargetModel(
        embedding,
        torch.from_numpy(kept),
        _rows(package, inputs[1], {name: attributes[name] for name in wanted}, kept),
        norm,
        bias,
        float(attributes.get("epsilon", 1e-5)),
        float(attributes.get("output_scale", 1.0)),
        float(attributes.get("softcap", 0.0)),
    )


def _vector(package: Package, value: ir.Value | None) -> Tensor | None:
    if value is None:
        return None
    tensor = value.const_value
    assert isinstance(tensor, ir.ExternalTensor), value.name
    found = np.fromfile(package.file(WEIGHTS_FILE), np.float32, count=tensor.size, offset=tensor.offset or 0)
    return torch.from_numpy(found)


def _rows(
    package: Package, tiles: ir.Value | None, attributes: Mapping[str, Any], ids: npt.NDArray[np.int64]
) -> Tensor:
    """Return rows of a packed matrix as float32, through the operator that looks embeddings up."""
    assert tiles is not None, "a matrix has tiles"
    weight = ir.Value(name=tiles.name, shape=tiles.shape, type=tiles.type, const_value=tiles.const_value)
    tokens = ir.Value(name="ids", shape=ir.Shape(["rows"]), type=ir.TensorType(ir.DataType.INT64))
    size = int(attributes["in_features"])
    rows = ir.Value(name="rows", shape=ir.Shape(["rows", size]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("QuantEmbed", [tokens, weight], dict(attributes), domain=DOMAIN, outputs=[rows])
    graph = ir.Graph(
        [tokens], [rows], nodes=[node], initializers=[weight], opset_imports={"": 21, DOMAIN: 1}, name="rows"
    )
    result = np.empty((len(ids), size), np.float32)
    with tempfile.TemporaryDirectory(prefix="edge-rt-rows-") as name:
        folder = Path(name)
        ir.save(ir.Model(graph, ir_version=10), folder / "rows.onnx")
        link_weights(package, folder)
        session, switch = Session(folder / "rows.onnx", profile="native"), StopSwitch()
        for begin in range(0, len(ids), _PIECE):
            binding = session.binding()
            binding.bind_input("ids", np.ascontiguousarray(ids[begin : begin + _PIECE], np.int64))
            binding.bind_output("rows", result[begin : begin + _PIECE])
            binding.run(switch)
    return torch.from_numpy(result)
