from __future__ import annotations

import random
import struct
import time

import pytest

from edge_rt.errors import InvalidPackage
from edge_rt.package.graph_check import MAX_GRAPH_BYTES, MAX_MESSAGES, check_graph
from edge_rt.package.op_list import DOMAIN, OPS

SIZE = 4096
GOOD = {"location": "weights.bin", "offset": "64", "length": "4032"}


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def entry(key, value):
    return field(1, key.encode()) + field(2, value.encode())


def tensor(*changes, **values):
    """Return a TensorProto: dims, type, name, and the entries of ``GOOD`` changed by ``values``."""
    entries = {key: value for key, value in (GOOD | values).items() if value is not None}
    fixed = b"\x08\x03" + b"\x10\x01" + field(8, b"name")
    return fixed + b"".join(field(13, entry(*item)) for item in (*entries.items(), *changes))


def initializer(data):
    return field(7, field(5, data))


def subgraphs(count, graph):
    for _ in range(count):
        graph = field(1, CAST + field(5, field(6, graph)))
    return field(7, graph)


CAST = field(1, b"x") + field(4, b"Cast")

PLACES = {
    "initializer": lambda t: field(7, field(5, t)),
    "second graph field": lambda t: field(7, b"") + field(7, field(5, t)),
    "sparse initializer, values": lambda t: field(7, field(15, field(1, t))),
    "sparse initializer, indices": lambda t: field(7, field(15, field(2, t))),
    "attribute": lambda t: field(7, field(1, CAST + field(5, field(5, t)))),
    "attribute, several": lambda t: field(7, field(1, CAST + field(5, field(10, t)))),
    "attribute, sparse": lambda t: field(7, field(1, CAST + field(5, field(22, field(1, t))))),
    "attribute, several sparse": lambda t: field(7, field(1, CAST + field(5, field(23, field(1, t))))),
    "subgraph": lambda t: subgraphs(1, field(5, t)),
    "subgraphs": lambda t: field(7, field(1, CAST + field(5, field(11, field(5, t))))),
    "function": lambda t: field(25, field(7, field(5, field(5, t)))),
    "function, default": lambda t: field(25, field(11, field(5, t))),
    "training, initialization": lambda t: field(20, field(1, field(5, t))),
    "training, algorithm": lambda t: field(20, field(2, field(5, t))),
    "after other fields": lambda t: (
        b"\x08\x0a" + field(2, b"x") + b"\x59" + bytes(8) + b"\x5d" + bytes(4) + initializer(t)
    ),
    "a tag in two bytes more than it needs": lambda t: b"\xba\x80\x00" + field(7, field(5, t))[1:],
}

OWN_PLACES = {
    "initializer",
    "attribute",
    "attribute, several",
    "after other fields",
    "a tag in two bytes more than it needs",
}
"""Those that graphs of our builders may have, as far as operators allow it."""


@pytest.fixture
def check(tmp_path):
    def run(data, size=SIZE):
        (tmp_path / "model.onnx").write_bytes(data)
        check_graph(tmp_path / "model.onnx", "weights.bin", size)

    return run


@pytest.mark.parametrize("place", PLACES)
def test_tensors_are_found_everywhere(check, place):
    check(PLACES[place](tensor()))
    with pytest.raises(InvalidPackage, match=r"names '\.\./outside\.bin', only 'weights\.bin' is allowed"):
        check(PLACES[place](tensor(location="../outside.bin")))


@pytest.mark.parametrize(
    "location",
    [
        "/etc/passwd",
        "./weights.bin",
        "weights.bin/",
        "sub/weights.bin",
        "weights.bin\0x",
        "WEIGHTS.BIN",
        "",
        "*/_ORT_MEM_ADDR_/*",
    ],
)
def test_other_locations(check, location):
    with pytest.raises(InvalidPackage, match="a file it must not read"):
        check(initializer(tensor(location=location)))


def test_values_in_the_graph_beside_external_ones(check):
    with pytest.raises(InvalidPackage, match="has its values in the graph as well"):
        check(initializer(tensor() + field(9, bytes(32))))


def test_the_last_of_several_values_counts(check):
    twice = field(1, b"location") + field(2, b"weights.bin") + field(2, b"/etc/passwd")
    with pytest.raises(InvalidPackage, match="names '/etc/passwd'"):
        check(initializer(tensor(location=None) + field(13, twice)))


@pytest.mark.parametrize(
    "changed",
    [
        tensor(location=None),
        tensor(offset=None),
        tensor(length=None),
        tensor(("location", "weights.bin")),
        tensor(("offset", "0")),
        tensor(("basepath", "/etc")),
        tensor(offset=None, Offset="64"),
    ],
)
def test_entries_that_are_missing_repeated_or_unknown(check, changed):
    with pytest.raises(InvalidPackage, match="wanted 'location', 'offset' and 'length'"):
        check(initializer(changed))


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("value", ["", "-1", "+1", " 1", "0x10", "1e3", "1.0", "1_0", "9" * 19, "9" * 10_000])
def test_numbers_that_are_none(check, key, value):
    with pytest.raises(InvalidPackage, match="external data is malformed"):
        check(initializer(tensor(**{key: value})))


@pytest.mark.parametrize(("offset", "length"), [("65", "4032"), ("64", "4033"), ("4097", "0"), ("9" * 18, "9" * 18)])
def test_ranges_outside_the_weights(check, offset, length):
    with pytest.raises(InvalidPackage, match=f"outside 'weights.bin'.*size {SIZE} bytes"):
        check(initializer(tensor(offset=offset, length=length)))


@pytest.mark.parametrize(
    "data",
    [
        b"graph",
        b"\x3a",  # no length
        b"\x3a\x05\x00",  # shorter than its length
        b"\x3a\x02\x2a\x01" + b"\x12\x00",  # a field that ends after the message around it
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a length of 11 bytes
        b"\x02\x00",  # field 0
        b"\x3b\x3c",  # a group
        b"\x3f",  # wire type 7
        b"\x59\x00",  # 8 bytes cut short
        b"\x5d\x00",  # 4 bytes cut short
        b"\x08\x80",  # a number cut short
        varint(1 << 32 | 7 << 3 | 2) + field(7, field(5, tensor(location="x")))[1:],  # field 7 in the low 32 bits
    ],
)
def test_malformed_protobuf(check, data):
    with pytest.raises(InvalidPackage, match="malformed protobuf"):
        check(data)


def test_depth(check):
    check(subgraphs(4, field(5, tensor())))
    with pytest.raises(InvalidPackage, match="nested too deeply"):
        check(subgraphs(5, field(5, tensor())))
    with pytest.raises(InvalidPackage, match="nested too deeply"):
        check(subgraphs(5_000, b""))


@pytest.mark.parametrize(
    "data",
    [
        field(7, field(1, b"") * (MAX_MESSAGES + 1)),
        field(7, b"") * (MAX_MESSAGES + 1),
        field(7, field(1, b"") * (MAX_MESSAGES - 10)) * 2,
    ],
    ids=["nodes", "graphs", "together"],
)
def test_too_many_parts(check, data):
    with pytest.raises(InvalidPackage, match="too many parts"):
        check(data)


def test_too_large(check):
    check(field(2, bytes(MAX_GRAPH_BYTES - 5)))
    with pytest.raises(InvalidPackage, match=r"too large\. The limit is "):
        check(field(2, bytes(MAX_GRAPH_BYTES - 4)))


def test_an_exported_graph_passes_fast_and_no_damage_escapes(small_package, check):
    data = (small_package / "model.onnx").read_bytes()
    size = (small_package / "weights.bin").stat().st_size
    started = time.process_time()
    check(data, size)
    # Ten times what it takes: 50 ns a byte.
    assert time.process_time() - started < 0.05 + len(data) * 0.5e-6
    with pytest.raises(InvalidPackage, match=r"outside 'weights\.bin'"):
        check(data, size - 1)
    random.seed(5)
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(random.choice((1, 8))):
            damaged[random.randrange(len(data))] = random.randrange(256)
        try:
            check(bytes(damaged[: random.choice((None, random.randrange(len(data))))]), size)
        except InvalidPackage:
            continue


def node(operator, inputs=("x",), outputs=("y",), domain="", **integers):
    attributes = [field(5, field(1, key.encode()) + b"\x18" + varint(value)) for key, value in integers.items()]
    names = [field(1, name.encode()) for name in inputs] + [field(2, name.encode()) for name in outputs]
    return field(1, b"".join([*names, field(4, operator.encode()), field(7, domain.encode()), *attributes]))


class TestOperators:
    @pytest.fixture
    def check_own(self, tmp_path):
        def run(*parts):
            (tmp_path / "model.onnx").write_bytes(field(7, b"".join(parts)))
            check_graph(tmp_path / "model.onnx", "weights.bin", SIZE, is_own=True)

        return run

    def test_those_of_our_builders_are_allowed(self, check_own):
        own = [node(op.name, domain=DOMAIN) for op in OPS]
        check_own(node("MatMulNBits", domain="com.microsoft"), node("Add", domain="ai.onnx"), *own)

    @pytest.mark.parametrize("operator", ["ConstantOfShape", "Expand", "Tile", "OneHot", "Resize", "Loop", "If"])
    def test_those_that_a_number_makes_large_are_not(self, check_own, check, operator):
        with pytest.raises(InvalidPackage, match=f"such packages do not have.*'{operator}'"):
            check_own(node(operator))
        with pytest.raises(InvalidPackage, match="such packages do not have"):
            check_own(node(operator, domain="edge_rt"))
        check(field(7, node(operator)))

    @pytest.mark.parametrize("place", sorted(PLACES.keys() - OWN_PLACES))
    def test_a_graph_of_ours_is_one_flat_graph(self, tmp_path, place):
        """ONNX Runtime puts functions and graphs in nodes into the graph, and computes them, while it opens it."""
        (tmp_path / "model.onnx").write_bytes(PLACES[place](tensor()))
        with pytest.raises(InvalidPackage, match="a part that such packages do not have"):
            check_graph(tmp_path / "model.onnx", "weights.bin", SIZE, is_own=True)

    @pytest.mark.parametrize("count", [2**31, 1, 3])
    def test_a_split_has_as_many_outputs_as_it_says(self, check, check_own, count):
        check_own(node("Split", outputs=("a", "b"), axis=2**64 - 1, num_outputs=2))
        for run in (check_own, lambda part: check(field(7, part))):
            with pytest.raises(InvalidPackage, match=f"num_outputs is .{count}., there are 2"):
                run(node("Split", outputs=("a", "b"), num_outputs=count))

    def test_only_casts_are_computed_from_constants(self, check_own):
        stored = [field(5, b"\x08\x03" + field(8, name)) for name in (b"a", b"b")]
        check_own(*stored, node("Cast", ["a"], ["c"]), node("Add", ["c", "x"], ["d"]))
        for inputs in (["a", "b"], ["c", "c"], []):
            with pytest.raises(InvalidPackage, match=r"constants alone.*'Range'"):
                check_own(*stored, node("Cast", ["a"], ["c"]), node("Range", inputs, ["d"]))

    def test_zeros_around_a_tensor_are_few(self, check_own):
        def pads(*values):
            return field(5, b"\x08\x04" + field(8, b"p") + field(9, struct.pack("<4q", *values)))

        check_own(pads(0, 0, 0, 7), node("Pad", ["x", "p"]))
        for stored in (pads(0, 0, 0, 2**40), pads(0, 0, -(2**63), 0), b""):
            with pytest.raises(InvalidPackage, match="pads a tensor too far"):
                check_own(stored, node("Pad", ["x", "p"]))


def test_where_constants_of_our_own_graphs_lie(tmp_path):
    path = tmp_path / "model.onnx"
    # A second dimension, and another name, which counts.
    path.write_bytes(initializer(tensor() + b"\x08\x02" + field(8, b"a")))
    found = check_graph(path, "weights.bin", SIZE, is_own=True)
    assert {name: (place.type, place.shape) for name, place in found.items()} == {"a": (1, (3, 2))}
    assert check_graph(path, "weights.bin", SIZE) == {}


def test_a_constant_whose_name_is_not_text(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(initializer(tensor() + field(8, b"\xff")))
    with pytest.raises(InvalidPackage, match="a name in the graph is not text"):
        check_graph(path, "weights.bin", SIZE, is_own=True)
