"""The graph of a draft head, and what runs it, against the numpy reference."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest

from edge_rt.errors import Cancelled, InferenceError, InvalidPackage
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import pool_size
from edge_rt.package.op_list import DOMAIN, OPS
from edge_rt.runtime.speculation.head_graph import HeadShape, block_inputs, head_graph
from edge_rt.runtime.speculation.head_runner import HeadRunner, HeadWeights
from edge_rt.system.machine import usable_cpus
from tests.ops.draft_head_reference import random_head, step, tree
from tests.ops.single_op import needs_native

pytestmark = needs_native

TOLERANCE = 2e-3
FORMS = ("embedding", "fc", "gate_up", "down", "head")


def shape_of(head):
    sizes = {
        name: head.attributes[name] for name in ("hidden", "intermediate", "vocabulary", "blocks", "nodes", "epsilon")
    }
    return HeadShape(**sizes, **{name: head.attributes[f"{name}_format"] for name in FORMS})


def weights_of(head):
    blocks = [head.inputs[name] for name in block_inputs(head.attributes["blocks"])]
    return HeadWeights(
        head.inputs["embedding"],
        head.values["packed_lm_head"],
        *(head.inputs[name] for name in ("fc", "state_norm", "token_norm", "output_norm")),
        tuple(zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True)),
        head.inputs["head_ids"],
    )


def open_runner(head, shape=None, weights=None, **options):
    threads = pool_size() or usable_cpus()
    return HeadRunner(shape or shape_of(head), weights or weights_of(head), threads=threads, **options)


def start_of(head):
    return head.inputs["hidden"][0], int(head.inputs["token"][0])


def without_more(head):
    changed = head.more()
    del changed.inputs["more_head"], changed.inputs["more_ids"]
    return changed


@pytest.fixture
def head():
    return without_more(random_head(np.random.default_rng(1), blocks=2))


class TestGraph:
    @pytest.mark.parametrize("blocks", [1, 4])
    def test_it_is_one_node_as_the_operator_is_described(self, blocks):
        head = random_head(np.random.default_rng(0), blocks=blocks)
        model = onnx.load_model_from_string(head_graph(shape_of(head)))
        (node,) = model.graph.node
        op = next(op for op in OPS if op.name == "DraftHead")
        assert (node.op_type, node.domain) == (op.name, DOMAIN)
        assert list(node.output) == [value.name for value in model.graph.output] == [port.name for port in op.outputs]
        assert list(node.input) == [value.name for value in model.graph.input]
        assert list(node.input) == [port.name for port in op.inputs][: 12 + 3 * blocks]
        found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        texts = {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}
        assert texts == pytest.approx(head.attributes)
        assert set(found) == {name.removesuffix("?") for name in op.attributes}
        types = {value.name: value.type.tensor_type for value in (*model.graph.input, *model.graph.output)}
        names = {"float": onnx.TensorProto.FLOAT, "uint8": onnx.TensorProto.UINT8}
        names |= {"int32": onnx.TensorProto.INT32, "int64": onnx.TensorProto.INT64}
        for port in (*op.inputs, *op.outputs):
            if port.name in types:
                assert types[port.name].elem_type == names[port.dtype]
        assert len(types["fc"].shape.dim) == 3
        assert len(types["hidden"].shape.dim) == 2
        assert {found.domain: found.version for found in model.opset_import} == {"": 21, DOMAIN: 1}


class TestSteps:
    @pytest.mark.parametrize("limits", [(8, 8, 1), (20, 3, 3), (1, 1, 8)])
    def test_trees_are_those_of_the_reference(self, head, limits):
        head.inputs["limits"] = np.array(limits, np.int32)
        found = open_runner(head).grow(*start_of(head), *limits)
        wanted, _ = tree(head)
        assert len(found.ids) == len(wanted)
        assert found.depths[:3] == [node[2] for node in wanted][:3]
        np.testing.assert_allclose(found.log_probs[0], wanted[0][3], atol=TOLERANCE)

    def test_steps_follow_each_other(self, head):
        runner = open_runner(head)
        first = runner.grow(*start_of(head), 32, 5, 2)
        other = runner.grow(-head.inputs["hidden"][0], 3, 8, 8, 1)
        assert other != first
        assert runner.grow(*start_of(head), 32, 5, 2) == first
        runner.state[:] = head.inputs["hidden"][0]
        assert runner.grow(runner.state, start_of(head)[1], 32, 5, 2) == first

    @pytest.mark.parametrize("limits", [(0, 1, 1), (33, 1, 1), (4, 65, 1), (4, 4, 9)])
    def test_limits_out_of_range(self, head, limits):
        with pytest.raises(InferenceError, match="limits"):
            open_runner(head).grow(*start_of(head), *limits)

    def test_a_state_that_is_no_number(self, head):
        runner = open_runner(head)
        with pytest.raises(InferenceError, match="not finite"):
            runner.grow(np.full_like(runner.state, np.nan), 0, 4, 4, 1)
        assert runner.grow(*start_of(head), 4, 4, 1).ids

    def test_stopping(self, head):
        switch = StopSwitch()
        runner = open_runner(head, switch=switch)
        switch.stop()
        with pytest.raises(Cancelled):
            runner.grow(*start_of(head), 4, 4, 1)


class TestTokensOfThePrompt:
    def guessable(self, runner, head):
        return set(runner.grow(*start_of(head), 64, 64, 1).ids)

    @pytest.fixture
    def head(self):
        return without_more(random_head(np.random.default_rng(2), nodes=64))

    def test_they_can_be_guessed(self, head):
        runner, always = open_runner(head), set(head.inputs["head_ids"].tolist())
        assert self.guessable(runner, head) == always
        runner.add_tokens([1, 0, 1, 79, 3, 79])
        assert self.guessable(runner, head) == always | {1, 79}
        runner.add_tokens(range(40))
        assert self.guessable(runner, head) == always | set(range(40))
        runner.add_tokens([2])
        assert self.guessable(runner, head) == always | {2}
        runner.add_tokens([])
        assert self.guessable(runner, head) == always

    def test_they_have_the_probabilities_of_their_rows(self, head):
        runner, ids = open_runner(head), np.array([1, 4, 5, 77])
        runner.add_tokens(ids.tolist())
        _, wanted = step(head.more(more_ids=ids), *start_of(head))
        found = runner.grow(*start_of(head), 64, 64, 1)
        assert len(found.ids) == len(wanted)
        for token, log_prob in zip(found.ids, found.log_probs, strict=True):
            assert log_prob == pytest.approx(wanted[token], abs=TOLERANCE)

    def test_of_too_many_the_last_ones_are_taken(self, head):
        runner = open_runner(head, prompt_rows=16)
        others = [token for token in range(80) if token % 3]
        runner.add_tokens([*others, 1, 2])
        added = self.guessable(runner, head) - set(head.inputs["head_ids"].tolist())
        assert added == {1, 2, *others[-14:]}

    def test_memory(self, head):
        small, large = (open_runner(head, prompt_rows=rows).memory_bytes for rows in (16, 1024))
        tile = head.values["packed_lm_head"][0].nbytes
        assert large - small > 63 * tile
        assert small > sum(
            array.nbytes for name, array in head.inputs.items() if name.startswith(("fc", "gate", "down"))
        )


class TestTensorsThatDoNotFit:
    @pytest.mark.parametrize(
        ("name", "spoil"),
        [
            ("fc", lambda array: array[:-1]),
            ("embedding", lambda array: array[1:]),
            ("lm_head", lambda array: array[1:]),
            ("lm_head", lambda array: array[..., :-1].copy()),
            ("state_norm", lambda array: array[:-1]),
            ("output_norm", lambda array: np.zeros(3, np.float32)),
            ("head_ids", lambda array: array[::-1].copy()),
            ("head_ids", lambda array: array + 70),
            ("head_ids", lambda array: array - 1),
            ("head_ids", lambda array: array[:0]),
            ("blocks", lambda blocks: blocks[:1]),
            ("blocks", lambda blocks: (blocks[0], (blocks[1][0], blocks[1][2], blocks[1][1]))),
        ],
    )
    def test_weights(self, head, name, spoil):
        weights = weights_of(head)
        with pytest.raises(InvalidPackage, match="do not fit"):
            open_runner(head, weights=dataclasses.replace(weights, **{name: spoil(getattr(weights, name))}))

    @pytest.mark.parametrize(
        ("name", "value"),
        [("hidden", 96), ("hidden", 0), ("intermediate", 17), ("vocabulary", 96), ("blocks", 1), ("nodes", 257),
         ("fc", "w8"), ("head", "w4"), ("embedding", "w9"), ("epsilon", float("nan"))],
    )  # fmt: skip
    def test_description(self, head, name, value):
        with pytest.raises(InvalidPackage):
            open_runner(head, shape=dataclasses.replace(shape_of(head), **{name: value}))
