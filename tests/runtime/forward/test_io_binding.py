"""The memory of the KV cache and what a graph is bound to, without a graph."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edge_rt.errors import ConfigError, InvalidPackage
from edge_rt.ort.session import TensorSpec
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.forward.io_binding_native import NativeIOBinding
from edge_rt.runtime.forward.io_binding_portable import PortableIOBinding, TracedIOBinding
from tests.helpers.fake_model import tiny_model
from tests.helpers.kv_layout import marked_rows
from tests.helpers.touched import touched_bytes

SMALL = tiny_model(num_layers=2, num_kv_heads=3, head_dim=8)


def buffers_of(interface):
    if isinstance(interface, TracedIOBinding):
        return list(interface.buffers.values())
    return [*interface.keys, *interface.values] if isinstance(interface, PortableIOBinding) else interface.buffers


def maker(kind, kv_format):
    return lambda config, capacity: kind(config, capacity, kv_format)


@pytest.fixture(
    params=[
        (PortableIOBinding, "f32"),
        (TracedIOBinding, "f32"),
        *((NativeIOBinding, name) for name in KV_FORMATS["native"]),
    ]
)
def make(request):
    return maker(*request.param)


@pytest.fixture(params=[(PortableIOBinding, "f32"), (TracedIOBinding, "f32"), (NativeIOBinding, "int8")])
def make_any(request):
    """For what does not depend on the format of a row."""
    return maker(*request.param)


def test_portable_buffers_are_what_the_graph_binds():
    interface = PortableIOBinding(SMALL, 10, "f32")
    assert [array.shape for array in buffers_of(interface)] == [(1, 3, 10, 8)] * 4
    assert {array.dtype for array in buffers_of(interface)} == {np.dtype(np.float32)}
    assert (interface.row_bytes, interface.row_map) == (2 * 2 * 3 * 8 * 4, None)


def test_traced_buffers_are_rows_of_tokens():
    interface = TracedIOBinding(SMALL, 10, "f32")
    assert {name: array.shape for name, array in interface.buffers.items()} == dict.fromkeys(
        ("0.key", "0.value", "1.key", "1.value"), (10, 3, 8)
    )
    assert (interface.row_bytes, interface.cache_bytes) == (2 * 2 * 3 * 8 * 4, 10 * 2 * 2 * 3 * 8 * 4)
    assert interface.row_map is None


WIDTHS = {"f32": 32, "f16": 16, "int8": 8 + 2, "k8v4": (8 + 2 + 16 + 4) // 2, "int4": 16 + 4, "int4x2": 32 + 4}
"""Bytes of a row of 8 elements; groups of 4 bit codes are stored whole."""


@pytest.mark.parametrize(("kv_format", "width"), WIDTHS.items())
def test_native_buffers_are_what_the_graph_binds(kv_format, width):
    interface = NativeIOBinding(SMALL, 10, kv_format)
    assert [array.shape for array in buffers_of(interface)] == [(2, 3, 10, width)] * 2
    assert {array.dtype for array in buffers_of(interface)} == {np.dtype(np.uint8)}
    assert interface.row_bytes == 2 * 2 * 3 * width
    assert interface.cache_bytes == 2 * (-(-2 * 3 * 10 * width // 64) * 64)
    np.testing.assert_array_equal(interface.row_map, np.arange(10, dtype=np.int32))


def test_every_layer_may_have_a_format_of_its_own():
    config = tiny_model(num_layers=4, num_kv_heads=3, head_dim=8)
    interface = NativeIOBinding(config, 10, ["f16", "int8", "int8", "k8v4"])
    assert [array.shape[3] for array in interface.buffers] == [16, 10, 10, 15]
    assert interface.row_bytes == 2 * 3 * (16 + 10 + 10 + 15)
    assert interface.cache_bytes == 960 + 640 + 640 + 960  # of 960, 600, 600 and 900: whole lines of 64
    assert (interface.kv_format, interface.kv_formats) == (
        "f16 x 1, int8 x 2, k8v4 x 1",
        ("f16", "int8", "int8", "k8v4"),
    )
    begins = [array.ctypes.data - interface.cache_address for array in interface.buffers]
    assert begins == [0, 960, 1600, 2240]
    assert NativeIOBinding(config, 10, ["int8"] * 4).kv_format == "int8"


class TestWindow:
    """Layers with a sliding window have rows for what is seen and for the largest pass."""

    CONFIG = tiny_model(num_layers=2, num_kv_heads=3, head_dim=8, layer_windows=(100, 100))

    def test_memory(self):
        whole = NativeIOBinding(SMALL, 8192, "f16")
        interface = NativeIOBinding(self.CONFIG, 8192, "f16", largest_pass=64)
        assert [array.shape for array in interface.buffers] == [(2, 3, 192, 16)] * 2
        assert (interface.row_map, interface.window.row_map.shape) == (None, (8192,))
        assert interface.row_bytes == interface.window.row_bytes == whole.row_bytes
        assert (interface.cache_bytes, whole.cache_bytes) == (192 * 192, 192 * 8192)

    def test_a_context_that_is_smaller_than_the_window(self):
        interface = NativeIOBinding(self.CONFIG, 30, "f16")
        assert interface.buffers[0].shape[2] == 30
        assert interface.open_cache().largest_pass == 30

    def test_the_bookkeeping_is_of_this_memory(self):
        cache = NativeIOBinding(self.CONFIG, 8192, "f16", largest_pass=64).open_cache()
        assert (cache.capacity, cache.length, cache.largest_pass) == (8192, 0, 93)
        assert PortableIOBinding(self.CONFIG, 10, "f32").open_cache().largest_pass == 10

    def test_filled_and_forgotten(self):
        interface = NativeIOBinding(self.CONFIG, 8192, "f16", largest_pass=64)
        interface.fill(100)
        marks = marked_rows("f16", (2, 3, 192, 16), 8, range(100))
        assert all(np.array_equal(array != 0, marks) for array in interface.buffers)
        interface.fill(5000)
        assert all((array != 0).all() for array in interface.buffers)
        interface.forget()
        assert not any(array.any() for array in interface.buffers)

    def test_the_graph_has_the_map_of_windows_alone(self):
        inputs = [
            ("window_row_map", shape, kind) if name == "row_map"
            else (name, (2, 3, "window_rows", "row_bytes"), kind) if name.startswith("cache.")
            else (name, shape, kind)
            for name, shape, kind in NATIVE_INPUTS
        ]  # fmt: skip
        NativeIOBinding(self.CONFIG, 10, "f16").check(StatedGraph(inputs, NATIVE_OUTPUTS))
        with pytest.raises(InvalidPackage, match=r"row_map: the manifest asks for None|window_row_map: the manifest"):
            NativeIOBinding(self.CONFIG, 10, "f16").check(StatedGraph(NATIVE_INPUTS, NATIVE_OUTPUTS))
        with pytest.raises(InvalidPackage, match="row_map: the manifest"):
            NativeIOBinding(SMALL, 10, "f16").check(StatedGraph(inputs, NATIVE_OUTPUTS))


def test_buffers_can_be_written_and_do_not_overlap(make):
    buffers = buffers_of(make(SMALL, 10))
    for number, array in enumerate(buffers):
        assert array.flags.c_contiguous
        array[:] = number
    assert [set(np.unique(array)) for array in buffers] == [{number} for number in range(len(buffers))]


def test_released_buffers_are_gone(make_any):
    interface = make_any(SMALL, 10)
    interface.outputs.reserve(1)
    interface.release()
    assert buffers_of(interface) == []
    assert interface.outputs.reserve(1)


def test_rows_take_memory_only_when_written(make_any):
    interface = make_any(tiny_model(num_layers=8, num_kv_heads=8, head_dim=64), 8192)
    assert touched_bytes(*buffers_of(interface)) == 0
    for array in buffers_of(interface):
        rows = array if isinstance(interface, TracedIOBinding) else array.swapaxes(0, 2)
        rows[:16] = 1
    assert interface.cache_bytes >= 40 << 20
    assert 0 < touched_bytes(*buffers_of(interface)) < 4 << 20


class TestFilled:
    """The cache as a measurement of deep passes finds it, and leaves it."""

    @pytest.mark.parametrize("rows", [0, 1, 7, 10])
    @pytest.mark.parametrize("head_dim", [2, 8, 48, 64])
    @pytest.mark.parametrize("kv_format", KV_FORMATS["native"])
    def test_the_bytes_of_the_first_rows_and_no_others(self, kv_format, head_dim, rows):
        interface = NativeIOBinding(tiny_model(num_layers=2, num_kv_heads=3, head_dim=head_dim), 10, kv_format)
        interface.fill(rows)
        for array in interface.buffers:
            marks = marked_rows(kv_format, array.shape, head_dim, range(rows))
            np.testing.assert_array_equal(array, np.where(marks, 0x11, 0))

    def test_every_layer_in_its_own_format(self):
        formats = ["k8v4", "int4x2"]
        interface = NativeIOBinding(SMALL, 10, formats)
        interface.fill(3)
        for array, name in zip(interface.buffers, formats, strict=True):
            np.testing.assert_array_equal(array == 0x11, marked_rows(name, array.shape, 8, range(3)))

    @pytest.mark.parametrize("rows", [0, 1, 7, 10])
    def test_the_first_rows_of_a_portable_cache_and_no_others(self, rows):
        interface = PortableIOBinding(SMALL, 10, "f32")
        interface.fill(rows)
        for array in buffers_of(interface):
            assert (array.view(np.uint8)[:, :, :rows] == 0x11).all()
            assert not array[:, :, rows:].any()

    def test_numbers_of_every_format_are_finite(self, make):
        interface = make(SMALL, 10)
        interface.fill(10)
        for array in buffers_of(interface):
            # Any two bytes that stand together may be half a precision number or its scale.
            assert np.isfinite(np.frombuffer(array.tobytes(), np.float16)).all()
            assert np.isfinite(np.frombuffer(array.tobytes(), np.float32)).all()

    def test_forgotten_rows_are_zeros_that_take_no_memory(self, make_any):
        interface = make_any(tiny_model(num_layers=8, num_kv_heads=8, head_dim=64), 8192)
        interface.fill(8192)
        # Written pages are there, and then they are not.
        assert touched_bytes(*buffers_of(interface)) >= interface.cache_bytes >= 40 << 20
        interface.forget()
        assert touched_bytes(*buffers_of(interface)) == 0
        assert not any(np.any(array[..., ::512, :]) for array in buffers_of(interface))

    def test_forgotten_rows_can_be_written_again(self, make):
        interface = make(SMALL, 10)
        interface.fill(10)
        interface.forget()
        interface.fill(3)
        # Three of ten rows, in all formats; k8v4 has a byte of every head's row behind them that no row uses.
        share = [np.count_nonzero(array) / array.size for array in buffers_of(interface)]
        assert share == pytest.approx([0.3] * len(share), abs=0.001)

    def test_a_released_cache_has_nothing_to_fill(self, make_any):
        interface = make_any(SMALL, 10)
        interface.release()
        interface.fill(5)
        interface.forget()
        assert buffers_of(interface) == []


class TestChoice:
    @pytest.fixture
    def manifest(self, small_package):
        return open_package(small_package).manifest

    @pytest.fixture
    def native(self, manifest):
        return dataclasses.replace(manifest, op_profile="native", kv_formats=("f16", "of_a_later_version", "int8"))

    def test_portable(self, manifest):
        for kv_format in (None, "f32"):
            interface = open_io_binding(manifest, 10, kv_format)
            assert (type(interface), interface.kv_format) == (PortableIOBinding, "f32")

    def test_native_takes_what_the_package_prefers(self, native):
        interface = open_io_binding(native, 10, None)
        assert (type(interface), interface.kv_format, interface.capacity) == (NativeIOBinding, "f16", 10)
        assert open_io_binding(native, 10, "int8").kv_format == "int8"

    @pytest.mark.parametrize("kv_format", ["f32", "int4", "", "of_a_later_version"])
    def test_a_format_that_the_package_has_not(self, native, kv_format):
        with pytest.raises(ConfigError, match=r"with the op profile native it can be f16, int8\."):
            open_io_binding(native, 10, kv_format)

    def test_a_format_that_is_younger_than_the_package(self, native):
        with pytest.raises(ConfigError, match="Choose one of these, or export the model again"):
            open_io_binding(native, 10, "int4")
        with pytest.raises(ConfigError, match="Choose one of these, or leave it out"):
            open_io_binding(native, 10, "int3")

    def test_a_format_for_every_layer(self, native):
        assert open_io_binding(native, 10, ["int8", "f16"]).kv_formats == ("int8", "f16")
        for formats, message in ((["int8"], "Got 1, the model has 2"), (["f16", "f32"], "Got 'f32'"), ([], "Got 0")):
            with pytest.raises(ConfigError, match=message):
                open_io_binding(native, 10, formats)

    def test_only_native_graphs_return_hidden_states(self, manifest, native):
        assert open_io_binding(native, 10, None, hidden=True).more_outputs
        assert not open_io_binding(native, 10, None).more_outputs
        with pytest.raises(ConfigError, match="return no hidden states"):
            open_io_binding(manifest, 10, None, hidden=True)

    def test_portable_has_one_format(self, manifest):
        with pytest.raises(ConfigError, match=r"Got 'f16'; with the op profile portable it can be f32\."):
            open_io_binding(manifest, 10, "f16")


class StatedGraph:
    """Says which inputs and outputs it has."""

    def __init__(self, inputs, outputs):
        self.inputs = [TensorSpec(*spec) for spec in inputs]
        self.outputs = [TensorSpec(*spec) for spec in outputs]


NATIVE_INPUTS = (
    ("input_ids", ("rows",), "tensor(int64)"),
    ("logit_rows", ("logit_rows",), "tensor(int64)"),
    ("past_length", ("sequences",), "tensor(int32)"),
    ("row_map", ("sequences", "positions"), "tensor(int32)"),
    ("parents", ("rows",), "tensor(int32)"),
    ("sequence_rows", ("sequences",), "tensor(int32)"),
    ("kv_formats", (2,), "tensor(int32)"),
    ("cache.0", (2, 3, "capacity", "row_bytes"), "tensor(uint8)"),
    ("cache.1", (2, 3, "capacity", "row_bytes"), "tensor(uint8)"),
)
NATIVE_OUTPUTS = (
    ("logits", ("logit_rows", 50), "tensor(float)"),
    ("top_ids", ("logit_rows", 8), "tensor(int32)"),
    ("top_logits", ("logit_rows", 8), "tensor(float)"),
    ("log_sum_exp", ("logit_rows",), "tensor(float)"),
)


def test_a_native_graph_that_fits():
    NativeIOBinding(SMALL, 10, "f16").check(StatedGraph(NATIVE_INPUTS, NATIVE_OUTPUTS))


def test_a_native_graph_of_a_vocabulary_below_the_number_of_top_tokens():
    logits, ids, top, sums = NATIVE_OUTPUTS
    outputs = [(logits[0], ("logit_rows", 5), logits[2]), *((n, ("logit_rows", 5), kind) for n, _, kind in (ids, top))]
    small = dataclasses.replace(SMALL, vocab_size=5)
    NativeIOBinding(small, 10, "f16").check(StatedGraph(NATIVE_INPUTS, [*outputs, sums]))


@pytest.mark.parametrize("index", range(len(NATIVE_INPUTS)))
def test_a_native_graph_that_does_not_fit(index):
    interface = NativeIOBinding(SMALL, 10, "f16")
    name, shape, kind = NATIVE_INPUTS[index]
    for other in ([], [(name, (*shape, 1), kind)], [(name, shape, "tensor(float)")]):
        with pytest.raises(InvalidPackage, match=f"{name}: the manifest asks for"):
            interface.check(StatedGraph([*NATIVE_INPUTS[:index], *other, *NATIVE_INPUTS[index + 1 :]], NATIVE_OUTPUTS))


@pytest.mark.parametrize("index", range(len(NATIVE_OUTPUTS)))
def test_a_native_graph_of_other_outputs(index):
    interface = NativeIOBinding(SMALL, 10, "f16")
    name, shape, kind = NATIVE_OUTPUTS[index]
    for other in ([], [(name, (*shape, 1), kind)], [(name, shape, "tensor(double)")]):
        outputs = [*NATIVE_OUTPUTS[:index], *other, *NATIVE_OUTPUTS[index + 1 :]]
        with pytest.raises(InvalidPackage, match=f"{name}: the manifest asks for"):
            interface.check(StatedGraph(NATIVE_INPUTS, outputs))


def test_a_graph_with_hidden_states():
    interface = NativeIOBinding(SMALL, 10, "f16", hidden=True)
    (output,) = interface.more_outputs
    assert output == TensorSpec("layer1.down", ("logit_rows", SMALL.hidden_size), "tensor(float)")
    interface.check(StatedGraph(NATIVE_INPUTS, [*NATIVE_OUTPUTS, (output.name, output.shape, output.type)]))
    with pytest.raises(InvalidPackage, match=r"layer1\.down"):
        interface.check(StatedGraph(NATIVE_INPUTS, NATIVE_OUTPUTS))


def test_a_graph_of_the_other_profile():
    with pytest.raises(InvalidPackage, match="seqlens_k"):
        PortableIOBinding(SMALL, 10, "f32").check(StatedGraph(NATIVE_INPUTS, NATIVE_OUTPUTS))
