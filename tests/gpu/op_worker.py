"""The operators on a GPU: the bits of the CPU, and its errors before anything is written."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import onnx_ir as ir

from tests.gpu.emulated import FLOAT, INT64, SOME, expect, main, same_bits, value
from tests.gpu.nodes import Node, PlacedLayer, pair
from tests.ops.layer_cases import BAD_INPUTS, CAPACITY, FAMILIES, MATRICES, chain, extras, key_constants, random_rows
from tests.ops.packed import random_matrix, wide
from tests.ops.spec_attention_reference import FORMATS

TREE = (-1, 0, 0, 1, -1, 4, 2)
# Rows of a pass, where they stand, what they follow.
PASSES = (
    (20, 0, chain(20)),
    (1, 20, [-1]),
    (len(TREE), 21, TREE),
    (3, 21, (*TREE, 3, 5, 7)),  # behind nodes of the pass before
    (2, 255, chain(2)),
)


def both(gpu, name, attributes, **inputs):
    """Return the outputs of an operator on the GPU, after comparing them with the CPU's."""
    with gpu.starts(kernels=SOME):
        found = Node(gpu, name, attributes, inputs).run(**inputs)
    same_bits(found, Node(gpu, name, attributes, inputs, cpu=True).run(**inputs), attributes)
    return found


def case_products(gpu):
    """Numbers of rows that take different kernels."""
    random = np.random.default_rng(5)
    for form in ("w4", "f16", "w8n"):
        columns = wide(form, 96)
        matrix, _ = random_matrix(random, form, 48, columns)
        for rows in (1, 3, 9, 17):
            x = random.standard_normal((rows, columns)).astype(np.float32)
            both(gpu, "QuantLinear", {"format": form, "out_features": 48, "in_features": columns}, x=x, weight=matrix)


def case_embeddings(gpu):
    random = np.random.default_rng(1)
    for form in ("w4m", "w8", "f16", "f32", "w4z32", "w8n"):
        columns = wide(form, 96)
        weight, _ = random_matrix(random, form, 37, columns)
        numbers = {"format": form, "out_features": 37, "in_features": columns, "scale": 3.25}
        ids = random.integers(0, 37, 9)
        both(gpu, "QuantEmbed", numbers, ids=ids, weight=weight)
        node = Node(gpu, "QuantEmbed", numbers, {"ids": ids, "weight": weight})
        with gpu.starts(kernels=0):
            for bad in (-1, 37, 2**62):
                given = {"ids": np.array([0, bad]), "weight": weight}
                expect(lambda node=node, given=given: node.run(**given), f"ids[1] is {bad}")
            assert node.run(ids=ids[:0], weight=weight)[0].shape == (0, columns)


def case_largest(gpu):
    random = np.random.default_rng(2)
    for rows, width, k in ((3, 17, 1), (2, 4097, 8), (1, 9000, 64), (2, 64, 64)):
        logits = (random.standard_normal((rows, width)) * 5).astype(np.float32)
        logits[0, 3] = np.nan
        both(gpu, "RowTopK", {"k": k}, logits=np.round(logits, 1))
    expect(lambda: both(gpu, "RowTopK", {"k": 9}, logits=np.zeros((1, 8), np.float32)), "logits has 8 columns")


def compare(layers, passes=PASSES, *, in_parts=False):
    random = np.random.default_rng(3)
    for count, past, parents in passes:
        x = random_rows(random, count)
        found, wanted = ((layer.in_parts if in_parts else layer.whole)(x, past, parents) for layer in layers)
        assert np.isfinite(wanted).all()
        assert found.tobytes() == wanted.tobytes(), (count, past)
        assert layers[0].cache.tobytes() == layers[1].cache.tobytes(), (count, past)


def case_attention(gpu):
    """SpecAttention between products."""
    norms_and_sinks = extras(np.random.default_rng(3))
    for kv_format, more in (
        ("f32", {"interleaved": 1, **norms_and_sinks}),
        ("k8v4", {"window": 10, "softcap": 3.0}),
        ("int4x2_upper", {}),
    ):
        compare(pair(lambda: PlacedLayer(MATRICES["w4"], kv_format, **more), gpu), in_parts=True)  # noqa: B023


def case_layers(gpu):
    """DecoderLayer with matrices of every kind, in every format of the cache."""
    matrices = cycle(("w4m", "mixed", "zero points", "w8"))
    for kv_format in FORMATS:
        form = MATRICES[next(matrices)]
        constants = key_constants(np.random.default_rng(3)) if kv_format.startswith("int4") else {}
        compare(pair(lambda: PlacedLayer(form, kv_format, **constants), gpu))  # noqa: B023


def case_ring(gpu):
    """With a window positions that are no longer seen give their rows to new ones."""

    def make():
        layer = PlacedLayer(MATRICES["w4"], "int4", window=10)
        layer.cache = np.ascontiguousarray(layer.cache[:, :, :32])
        layer.shared["row_map"] = np.arange(CAPACITY, dtype=np.int32) * 5 % 32
        return layer

    layers = pair(make, gpu)
    compare(layers, [(18, past, chain(18)) for past in (0, 18, 36, 54)] + [(len(TREE), 72, TREE), (1, 290, [-1])])
    x = random_rows(np.random.default_rng(3), 24)
    for layer in layers:
        expect(lambda layer=layer: layer.whole(x, 72, chain(24)), "9 positions seen and 24 rows of the pass")


def case_families(gpu):
    kv_formats, few = cycle(("int8", "f16")), ((4, 0, chain(4)), PASSES[2])
    for family in FAMILIES:
        kv_format = next(kv_formats)
        compare(pair(lambda: PlacedLayer(MATRICES["w4m"], kv_format, family), gpu), few)  # noqa: B023


def case_refused_before_written(gpu):
    """What a host can see to be wrong is the CPU's error, and the cache stays as it is."""
    layers = pair(lambda: PlacedLayer(MATRICES["w4m"], **extras(np.random.default_rng(3))), gpu)
    x = random_rows(np.random.default_rng(4), 5)
    for layer in layers:
        layer.whole(x, 0, chain(5))
    before = layers[0].cache.tobytes()
    with gpu.starts(kernels=0):
        for changed, message in BAD_INPUTS.values():
            text = message.replace("\\", "")
            for layer in layers:
                expect(lambda layer=layer, changed=changed: layer.whole(x[:2], 5, chain(2), changed=changed), text)
                assert layer.cache.tobytes() == before, message
        shared = {
            "past_length": np.zeros(2, np.int32),
            "row_map": np.zeros((2, 8), np.int32),
            "sequence_rows": np.ones(2, np.int32),
        }
        for layer in layers:
            text = "row_map gives row 0 to two sequences of the pass"
            expect(lambda layer=layer: layer.whole(x[:2], 0, [-1, -1], changed=shared), text)
        assert layers[0].cache.tobytes() == before
    compare(layers, [(2, 5, chain(2))])
    two = {**shared, "row_map": np.arange(2 * 8, dtype=np.int32).reshape(2, 8)}
    found, wanted = (layer.whole(x[:2], 0, [-1, -1], changed=two) for layer in layers)
    assert found.tobytes() == wanted.tobytes()
    assert layers[0].cache.tobytes() == layers[1].cache.tobytes()


def rows_of(gpu, data, indices, axis, **options):
    x, ids, y = value("x", FLOAT, data.ndim), value("ids", INT64, indices.ndim), value("y", FLOAT, None)
    node = ir.node("Gather", [x, ids], {"axis": axis}, outputs=[y])
    return gpu.session([node], [x, ids], [y], **options).run(None, {"x": data, "ids": indices})


def case_gather(gpu):
    random = np.random.default_rng(6)
    data = random.standard_normal((5, 4, 130)).astype(np.float32)
    for axis, indices in ((0, [4, 0, -1]), (1, [[1, -4], [3, 3]]), (-1, [129, 7]), (0, 2), (0, [])):
        ids = np.array(indices, np.int64)
        with gpu.starts(kernels=int(ids.size > 0)):
            found = rows_of(gpu, data, ids, axis)
        same_bits(found, [np.take(data, ids, axis)], (axis, indices))
    for bad in (5, -6):
        expect(lambda bad=bad: rows_of(gpu, data, np.array([0, bad]), 0), f"indices[1] is {bad}, must be -5 to 4")
    assert found[0].shape == (0, 4, 130)


def case_concat(gpu):
    random = np.random.default_rng(7)
    for axis, widths in ((-1, (96, 32, 32)), (0, (3, 1)), (1, (0, 2, 5))):
        shapes = [[3, 4, 6] for _ in widths]
        for shape, width in zip(shapes, widths, strict=True):
            shape[axis] = width
        parts = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
        inputs, y = [value(f"x{i}", FLOAT, 3) for i in range(len(parts))], value("y", FLOAT, 3)
        session = gpu.session([ir.node("Concat", inputs, {"axis": axis}, outputs=[y])], inputs, [y])
        with gpu.starts(kernels=np.count_nonzero(widths)):
            found = session.run(None, {f"x{i}": part for i, part in enumerate(parts)})
        same_bits(found, [np.concatenate(parts, axis)], axis)


def split(gpu, data, parts, axis=-1):
    x, rank = value("x", FLOAT, data.ndim), data.ndim
    outputs = [value(f"y{i}", FLOAT, rank) for i in range(parts)]
    node = ir.node("Split", [x], {"axis": axis, "num_outputs": parts}, outputs=outputs)
    return gpu.session([node], [x], outputs).run(None, {"x": data})


def case_split(gpu):
    """Up to 16 parts are one launch."""
    random = np.random.default_rng(8)
    for shape, parts in (((3, 12), 4), ((2, 3, 35 * 130), 35), ((5, 7), 1), ((0, 8), 2)):
        data = random.standard_normal(shape).astype(np.float32)
        with gpu.starts(kernels=-(-parts // 16) if data.size else 0):
            found = split(gpu, data, parts)
        same_bits(found, np.split(data, parts, -1), (shape, parts))
    data = np.zeros((3, 12), np.float32)
    expect(lambda: split(gpu, data, 3, axis=0), "axis 0 has 3 values, must be the last one")
    expect(lambda: split(gpu, data, 5), "axis 1 has 12 values, must be the last one, with a multiple of 5")


def product(gpu, data, factor):
    x, by, y = value("x", FLOAT, data.ndim), value("by", FLOAT, factor.ndim), value("y", FLOAT, None)
    session = gpu.session([ir.node("Mul", [x, by], outputs=[y])], [x, by], [y])
    return session.run(None, {"x": data, "by": factor})


def case_scale(gpu):
    random = np.random.default_rng(9)
    for shape, by in (((3, 130), (1,)), ((2, 1), ()), ((0, 4), (1,)), ((), ())):
        data, factor = (random.standard_normal(dims).astype(np.float32) for dims in (shape, by))
        with gpu.starts(kernels=int(data.size > 0)):
            found = product(gpu, data, factor)
        same_bits(found, [data * factor], (shape, by))
    some = np.ones((2, 3), np.float32)
    expect(lambda: product(gpu, some, some[0]), "B has 3 values in 1 dimensions, must have 1 in at most 2")
    expect(lambda: product(gpu, some[0], np.ones((1, 1), np.float32)), "B has 1 values in 2 dimensions")


def case_other_types(gpu):
    """Numbers that the provider has no kernel for stay on the CPU."""
    x, ids, y = value("x", INT64, 1), value("ids", INT64, 1), value("y", INT64, 1)
    session = gpu.session([ir.node("Gather", [x, ids], {"axis": 0}, outputs=[y])], [x, ids], [y])
    with gpu.starts(kernels=0, graphs=0):
        found = session.run(None, {"x": np.arange(9) * 2**40, "ids": np.array([8, 1])})[0]
    assert found.tolist() == [8 * 2**40, 2**40]


if __name__ == "__main__":
    main(globals())
