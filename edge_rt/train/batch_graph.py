"""The graph of a native package, rewritten so that one pass computes tokens of several independent sequences.

Matrices are multiplied for all rows of a pass at once, which is what makes a batch fast; attention is computed sequence
by sequence, each with rows of its own in one cache. Kernels do not let the bits of a row depend on other rows, so every
sequence has the tokens that the package gives it alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx_ir as ir

from edge_rt.errors import UnsupportedModel

DOMAIN: Final = "edge_rt"
_LAYER_INPUTS: Final = 29
_ENTERING, _LEAVING = "hidden", "hidden_out"
"""The stream before and behind the layers of a segment."""
_WITHOUT_GATE: Final = "relu2"
_ATTENTION: Final = (
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "layer",
    "scale",
    "window",
    "softcap",
    "interleaved",
    "rotate",
    "norm_after_rotation",
)


def batch_model(models: Sequence[ir.Model], sequences: int, top: int) -> ir.Model:
    """Return the graph for several sequences.

    Requires: the graphs of a native package without sliding windows; those of one with exits are joined.
    Ensures: the inputs ``input_ids [rows]``, ``parents [rows]``, ``logit_rows``, ``sequence_rows [sequences]`` (rows of
    every sequence, in order, each at least 1), ``past_lengths [sequences]``, ``row_map.{b} [capacity]``,
    ``kv_formats``, ``cache.{i}``; the outputs ``hidden [rows, hidden_size]`` (before the final norm), ``exit.{i}`` of
    the same shape for every exit, ``top_ids``, ``top_logits [logit_rows, top]`` and ``log_sum_exp [logit_rows]``.

    Args:
        models: the graphs of a package's segments, in their order; they are left unchanged.
    """
    return _Rewrite(models, sequences, top).run()


class _Rewrite:
    def __init__(self, models: Sequence[ir.Model], sequences: int, top: int) -> None:
        self._graphs = [model.graph for model in models]
        self._ir_version = models[0].ir_version
        self._sequences = sequences
        self._top = top
        self._segment = 0
        self._nodes: list[ir.Node] = []
        self._values: dict[str, ir.Value] = {}
        self._constants: dict[str, ir.Value] = {}

    def run(self) -> ir.Model:
        inputs = self._inputs()
        for name, value in self._initializers():
            self._constants[name] = ir.Value(
                name=name, shape=value.shape, type=value.type, const_value=value.const_value
            )
        self._values |= self._constants
        self._lengths = self._split("past_lengths", "past_length", None)
        self._parents = self._split("parents", "parents", "sequence_rows")
        exits = []
        for index, graph in enumerate(self._graphs):
            self._segment = index
            for node in graph:
                self._rewrite(node)
            if index < len(self._graphs) - 1:
                exits.append(self._values[f"exit.{index}"])
                self._values[_ENTERING] = exits[-1]
        rows, size = "rows", "hidden_size"
        outputs = [
            *(_typed(value, ir.DataType.FLOAT, [rows, size]) for value in (self._values["hidden"], *exits)),
            _typed(self._values["top_ids"], ir.DataType.INT32, ["logit_rows", self._top]),
            _typed(self._values["top_logits"], ir.DataType.FLOAT, ["logit_rows", self._top]),
            _typed(self._values["log_sum_exp"], ir.DataType.FLOAT, ["logit_rows"]),
        ]
        used = {value.name for node in self._nodes for value in node.inputs if value is not None}
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=self._nodes,
            initializers=[value for name, value in self._constants.items() if name in used],
            opset_imports=dict(self._graphs[0].opset_imports),
            name="batch",
        )
        return ir.Model(graph, ir_version=self._ir_version, producer_name="edge-rt")

    def _initializers(self) -> Iterator[tuple[str, ir.Value]]:
        for graph in self._graphs:
            yield from graph.initializers.items()

    def _inputs(self) -> list[ir.Value]:
        """Return the inputs of the new graph."""
        count = self._sequences
        given = {str(value.name): value for graph in self._graphs for value in graph.inputs}
        kept = [value for name, value in given.items() if name == "kv_formats" or name.startswith("cache.")]
        replaced = {"input_ids", "logit_rows", "past_length", "row_map", "parents"}
        if len(self._graphs) > 1:
            replaced.add(_ENTERING)
        if more := set(given) - replaced - {str(v.name) for v in kept}:
            raise UnsupportedModel(
                "Several sequences cannot be computed together with this model.",
                f"Its graph has {len(more)} inputs that a batch does not know, for example {min(more)}.",
                "Train a drafter for another model.",
            )
        return [
            self._input("input_ids", ir.DataType.INT64, ["rows"]),
            self._input("parents", ir.DataType.INT32, ["rows"]),
            self._input("logit_rows", ir.DataType.INT64, ["logit_rows"]),
            self._input("sequence_rows", ir.DataType.INT64, [count]),
            self._input("past_lengths", ir.DataType.INT32, [count]),
            *(self._input(f"row_map.{b}", ir.DataType.INT32, ["capacity"]) for b in range(count)),
            *(self._input(str(value.name), value.dtype, [*(value.shape or ())]) for value in kept),
        ]

    def _rewrite(self, node: ir.Node) -> None:
        """Add what stands for a node of the package's graph."""
        first, result = str(node.inputs[0].name if node.inputs[0] else ""), self._result(node)
        if node.op_type == "DecoderLayer":
            self._layer(node)
        elif node.op_type == "SpecAttention":
            self._attention(node, first, list(node.inputs[1:]), result)
        elif node.op_type == "Gather" and node.inputs[1] is not None and node.inputs[1].name == "logit_rows":
            # All rows go on to the end of the last layer: their hidden states are wanted.
            self._values[result] = self._values[first]
        elif result == "logits":
            hidden = self._named(self._values[first], "hidden")
            self._node("Gather", [hidden, self._values["logit_rows"]], ["wanted"], {"axis": 0}, "")
            self._copy(node, ["wanted", *(value.name if value else None for value in node.inputs[1:])])
        elif node.op_type == "RowTopK":
            names = ["top_ids", "top_logits", "log_sum_exp"]
            self._node("RowTopK", [self._values["logits"]], names, {"k": self._top})
        else:
            self._copy(node, [value.name if value else None for value in node.inputs])

    def _result(self, node: ir.Node) -> str:
        """Return the name of what a node computes: every segment has the same name for what it ends with."""
        name = str(node.outputs[0].name)
        return f"exit.{self._segment}" if name == _LEAVING else name

    def _named(self, value: ir.Value, name: str) -> ir.Value:
        return self._node("Identity", [value], [name], {}, "")[0]

    def _input(self, name: str, dtype: Any, shape: Sequence[Any]) -> ir.Value:
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
        self._values[name] = value
        return value

    def _node(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[str],
        attributes: dict[str, Any],
        domain: str = DOMAIN,
    ) -> list[ir.Value]:
        inputs = list(inputs)
        while inputs and inputs[-1] is None:
            inputs.pop()
        values = [ir.Value(name=name) for name in outputs]
        self._nodes.append(ir.node(op, inputs, attributes, domain=domain, outputs=values, name=f"{outputs[0]}/{op}"))
        self._values |= dict(zip(outputs, values, strict=True))
        return values

    def _split(self, name: str, prefix: str, sizes: str | None) -> list[ir.Value]:
        names = [f"{prefix}.{b}" for b in range(self._sequences)]
        inputs = [self._values[name], *([self._values[sizes]] if sizes else [])]
        return self._node(
            "Split", inputs, names, {"axis": 0} if sizes else {"axis": 0, "num_outputs": self._sequences}, ""
        )

    def _copy(self, node: ir.Node, inputs: Sequence[str | None]) -> ir.Value:
        attributes = {name: a.value for name, a in node.attributes.items()}
        return self._node(
            node.op_type,
            [self._values[n] if n else None for n in inputs],
            [self._result(node), *(str(v.name) for v in node.outputs[1:])],
            attributes,
            node.domain,
        )[0]

    def _attention(self, node: ir.Node, qkv: str, inputs: list[ir.Value | None], name: str) -> ir.Value:
        """Attend sequence by sequence; ``inputs`` are those of the operator after qkv, in its order."""
        attributes = {k: a.value for k, a in node.attributes.items() if k in (*_ATTENTION, "epsilon")}
        rows = self._split(qkv, f"{name}.qkv", "sequence_rows")
        parts = []
        for b in range(self._sequences):
            mine = [self._found(value) for value in inputs]
            mine[1], mine[2], mine[3] = self._lengths[b], self._values[f"row_map.{b}"], self._parents[b]
            parts += self._node("SpecAttention", [rows[b], *mine], [f"{name}.{b}"], attributes)
        return self._node("Concat", parts, [name], {"axis": 0}, "")[0]

    def _layer(self, node: ir.Node) -> None:
        """Write a whole layer as the operators that it consists of."""
        inputs = [*node.inputs, *[None] * (_LAYER_INPUTS - len(node.inputs))]
        x, attention_norm, qkv, output, mlp_norm, gate_up, down = (inputs[i] for i in (0, 11, 12, 13, 14, 15, 16))
        key_constants, biases, post_norms = inputs[17:20], inputs[20:24], inputs[24:26]
        query_scale, attention_norm_bias, mlp_norm_bias = inputs[26:29]
        facts = {name: attribute.value for name, attribute in node.attributes.items()}
        name = self._result(node)
        norm = {key: facts[key] for key in ("norm",) if key in facts}
        scale = {key: facts[key] for key in ("residual_scale",) if key in facts}

        def fine(name: str) -> dict[str, str]:
            blocks = facts.get(f"{name}_fine_blocks", "")
            return {"fine_blocks": blocks} if blocks else {}

        heads, kv = (facts[key] * facts["head_dim"] for key in ("num_heads", "num_kv_heads"))
        hidden, inner = facts["hidden"], facts["intermediate"]
        activation = facts.get("activation", "swiglu")
        wide = inner if activation == _WITHOUT_GATE else 2 * inner
        stream = self._found(x)
        self._linear(
            stream, f"{name}.qkv", _Packed(qkv, (heads, kv, kv), hidden, facts["qkv_format"], biases[0]), facts,
            norm=(attention_norm, attention_norm_bias), more=norm | fine("qkv"),
        )  # fmt: skip
        attended = self._attention(
            node, f"{name}.qkv", [*inputs[1:11], *key_constants, query_scale], f"{name}.attention"
        )
        y = self._linear(
            attended, f"{name}.output", _Packed(output, (hidden,), heads, facts["output_format"], biases[1]), facts,
            residual=stream, post_norm=post_norms[0], more=scale | fine("output"),
        )  # fmt: skip
        parts = (inner,) * (wide // inner)
        gated = self._linear(
            y, f"{name}.hidden", _Packed(gate_up, parts, hidden, facts["gate_up_format"], biases[2]), facts,
            norm=(mlp_norm, mlp_norm_bias), more={"activation": activation} | norm | fine("gate_up"),
        )  # fmt: skip
        self._linear(
            gated, name, _Packed(down, (hidden,), inner, facts["down_format"], biases[3]), facts,
            residual=y, post_norm=post_norms[1], more=scale | fine("down"),
        )  # fmt: skip

    def _linear(
        self,
        x: ir.Value | None,
        name: str,
        product: _Packed,
        facts: Mapping[str, Any],
        *,
        norm: tuple[ir.Value | None, ir.Value | None] = (None, None),
        residual: ir.Value | None = None,
        post_norm: ir.Value | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> ir.Value:
        attributes = {
            "format": product.form,
            "out_features": sum(product.rows),
            "in_features": product.columns,
            "epsilon": facts.get("epsilon", 1e-5),
            **(more or {}),
        }
        if "," in product.form:
            attributes["part_rows"] = ",".join(map(str, product.rows))
        inputs = [product.weight, norm[0], product.bias, None, None, post_norm, norm[1]]
        found = [self._found(value) for value in inputs]
        found[3] = residual
        return self._node("QuantLinear", [x, *found], [name], attributes)[0]

    def _found(self, value: ir.Value | None) -> ir.Value | None:
        return None if value is None else self._values.get(str(value.name))


@dataclass(frozen=True)
class _Packed:
    """A packed matrix: rows of its parts, columns, formats of its parts, and its bias."""

    weight: ir.Value | None
    rows: tuple[int, ...]
    columns: int
    form: str
    bias: ir.Value | None


def _typed(value: ir.Value, dtype: Any, shape: Sequence[Any]) -> ir.Value:
    value.shape, value.type = ir.Shape(shape), ir.TensorType(dtype)
    return value
