"""The native library, and the layer that its operators are written against, through ONNX Runtime."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edge_rt.errors import ConfigError, RuntimeUnavailable, VersionMismatch
from edge_rt.ort.op_library import (
    NativeLibrary,
    library_file,
    library_path,
    native_library,
    native_status,
    open_library,
)
from edge_rt.package.op_list import DOMAIN, OPS
from tests.helpers.native import build_test_ops

pytestmark = pytest.mark.own_pools

FLOAT, INT32, INT64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64
ISAS = ("scalar", "avx2", "avx_vnni", "avx512_vnni", "neon_dotprod", "neon_i8mm")
"""In the order of their numbers in ``csrc/common/isa.h``."""

needs_library = pytest.mark.skipif(library_path() is None, reason="installed without a C++ compiler")


@pytest.fixture(scope="session")
def toys(tmp_path_factory):
    return build_test_ops(tmp_path_factory.mktemp("test_ops"))


@pytest.fixture(scope="session")
def toy_library(toys):
    return NativeLibrary(toys)


@pytest.fixture
def open_toy(toy_library):
    """Open a graph of one test op; an empty name leaves an optional input out."""

    def opened(op, inputs, outputs, threads=1, **attributes):
        values = [
            ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([None] * rank)) if name else None
            for name, dtype, rank in inputs
        ]
        results = [ir.Value(name=name, type=ir.TensorType(dtype)) for name, dtype in outputs]
        converted = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
        node = ir.Node(DOMAIN, op, values, attributes=converted, outputs=results)
        imports = {"": 21, DOMAIN: 1}
        graph = ir.Graph([v for v in values if v], results, nodes=[node], opset_imports=imports, name="g")
        options = ort.SessionOptions()
        options.log_severity_level = 4
        toy_library.use_threads(threads)
        options.register_custom_ops_library(str(toy_library.path))
        data = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    return opened


@pytest.fixture
def affine(open_toy):
    """Run ``y = factor * x + bias`` on x = [[0, 1], [2, 3]]."""

    def run(*inputs, outputs=(("y", FLOAT),), **attributes):
        x = np.arange(4, dtype=np.float32).reshape(2, 2)
        declared = [("x", FLOAT, 2)]
        declared += [(name, kind, array.ndim if name else 0) for name, kind, array in inputs]
        session = open_toy("Affine", declared, outputs, **attributes)
        return session.run(None, {"x": x} | {name: array for name, _, array in inputs if name})

    return run


class TestInstalledLibrary:
    @needs_library
    def test_it_loads_and_knows_this_cpu(self):
        names = native_library().isa_names
        assert names[-1] == "scalar"
        assert set(names) <= set(ISAS)
        # Best first: later numbers are faster.
        assert sorted(names, key=ISAS.index, reverse=True) == list(names)
        assert native_status(library_path()).best == names[0]

    @needs_library
    def test_onnx_runtime_takes_it(self):
        ort.SessionOptions().register_custom_ops_library(str(library_path()))

    @needs_library
    def test_it_holds_the_operators_that_python_describes(self):
        assert set(native_library().signatures()) == {op.signature for op in OPS}

    @needs_library
    @pytest.mark.parametrize("isa", ["avx", "", "AVX2", "neon_i8mm,scalar", "sse\u00e9"])
    def test_an_unknown_instruction_set(self, isa):
        with pytest.raises(ConfigError, match="scalar") as caught:
            native_library().select(isa)
        assert "available are" in caught.value.numbers

    @needs_library
    def test_one_of_another_architecture(self):
        library = native_library()
        foreign = next(isa for isa in ISAS if isa not in library.isa_names)
        with pytest.raises(ConfigError):
            library.select(foreign)

    @needs_library
    def test_selecting(self):
        library = native_library()
        assert library.select("scalar") == "scalar"
        assert library.select(None) == library.isa_names[0]


class TestLibraryThatIsNotThere:
    def test_nothing_was_built(self, tmp_path):
        assert library_path(tmp_path) is None
        with pytest.raises(RuntimeUnavailable, match="without a C\\+\\+ compiler") as caught:
            open_library(library_path(tmp_path))
        assert caught.value.exit_code == 5
        assert str(caught.value).endswith("edge-rt export -m SOURCE --out DIR --profile portable")
        status = native_status(None)
        assert (status.library, status.best, status.instruction_sets) == (None, None, ())
        assert "without a C++ compiler" in status.reason

    @pytest.mark.parametrize(
        ("platform", "name"),
        [("linux", "libedge_rt_ops.so"), ("darwin", "libedge_rt_ops.dylib"), ("win32", "edge_rt_ops.dll")],
    )
    def test_its_name_is_the_one_that_the_build_gives_it(self, platform, name):
        assert library_file(platform) == name

    def test_a_library_of_another_platform_is_none(self, tmp_path):
        (tmp_path / "native").mkdir()
        for platform in {"linux", "darwin", "win32"} - {sys.platform}:
            (tmp_path / "native" / library_file(platform)).write_bytes(b"")
        assert library_path(tmp_path) is None

    def test_it_lacks_an_operator(self, toys):
        with pytest.raises(VersionMismatch, match=r"lacks \d+ of \d+ operators.*Install edge-rt again"):
            open_library(toys)
        assert "another version" in native_status(toys).reason

    def test_the_file_is_no_library(self, tmp_path):
        (tmp_path / "native").mkdir()
        (tmp_path / "native" / library_file()).write_bytes(b"\x7fELF and nothing more")
        found = library_path(tmp_path)
        with pytest.raises(RuntimeUnavailable, match="cannot be loaded"):
            open_library(found)
        assert "cannot be loaded" in native_status(found).reason

    @pytest.mark.parametrize(
        ("source", "error"),
        [
            ("int edge_rt_isa_names, edge_rt_select_isa; int edge_rt_abi_version() { return 999; }", VersionMismatch),
            ("int unrelated;", RuntimeUnavailable),
        ],
    )
    def test_the_library_is_another_one(self, tmp_path, source, error, compile_library):
        with pytest.raises(error):
            open_library(compile_library(source))

    @pytest.fixture
    def compile_library(self, tmp_path):
        def compiled(source):
            compiler = shutil.which("c++") or pytest.skip("needs a C++ compiler")
            (tmp_path / "x.cc").write_text(f'extern "C" {{ {source} }}')
            command = [compiler, "-shared", "-fPIC", "-o", str(tmp_path / "x.so"), str(tmp_path / "x.cc")]
            subprocess.run(command, check=True)
            return tmp_path / "x.so"

        return compiled


class TestInputsAndAttributes:
    def test_optional_inputs_and_outputs_left_out(self, affine):
        (y,) = affine(factor=2.0)
        assert y.tolist() == [[0, 2], [4, 6]]

    def test_all_of_them(self, affine):
        bias, last = np.ones((2, 2), np.float32), np.array([10], np.float32)
        y, elements = affine(
            ("bias", FLOAT, bias), ("last", FLOAT, last), outputs=(("y", FLOAT), ("elements", INT64)), factor=2.0
        )
        assert y.tolist() == [[11, 13], [15, 17]]
        assert elements.tolist() == [4]

    def test_one_in_the_middle_left_out(self, affine):
        (y,) = affine(("", FLOAT, None), ("last", FLOAT, np.array([10], np.float32)), factor=1.0)
        assert y.tolist() == [[10, 11], [12, 13]]

    def test_one_input_of_several_types(self, affine):
        (y,) = affine(("bias", INT32, np.full((2, 2), 5, np.int32)), factor=0.0)
        assert y.tolist() == [[5, 5], [5, 5]]

    def test_attributes_of_every_kind(self, affine):
        (y,) = affine(factor=1.0, offset=1, mode="negated")
        assert y.tolist() == [[-1, -2], [-3, -4]]

    @pytest.mark.parametrize(
        ("attributes", "message"),
        [
            ({}, "Affine: attribute factor is missing, must be a float"),
            ({"factor": 1}, "Affine: attribute factor is not a float"),
            ({"factor": 1.0, "offset": 1.5}, "Affine: attribute offset is not an integer"),
            ({"factor": 1.0, "offset": [1, 2]}, "Affine: attribute offset is not an integer"),
            ({"factor": 1.0, "mode": 3}, "Affine: attribute mode is not a string"),
            ({"factor": 1.0, "mode": "odd"}, 'Affine: mode is "odd", must be plain or negated'),
        ],
    )
    def test_wrong_attributes(self, affine, attributes, message):
        with pytest.raises(Exception, match=message):
            affine(**attributes)

    @pytest.mark.parametrize(
        ("bias", "kind", "message"),
        [
            (np.ones((3, 2), np.float32), FLOAT, r"Affine: bias is \[3, 2\], must be \[2, 2\]"),
            (np.ones(2, np.float32), FLOAT, r"Affine: bias is \[2\], must be \[2, 2\]"),
            (np.ones((1,) * 9, np.float32), FLOAT, "Affine: bias has 9 dimensions, must have at most 8"),
            (np.ones((2, 2), np.int64), INT64, "Affine: bias is int64, must be float or int32"),
        ],
    )
    def test_wrong_inputs(self, affine, bias, kind, message):
        with pytest.raises(Exception, match=message):
            affine(("bias", kind, bias), factor=1.0)

    def test_any_dimension_is_shown_as_a_star(self, open_toy):
        session = open_toy("Affine", [("x", FLOAT, 2)], [("y", FLOAT)], factor=1.0)
        with pytest.raises(Exception, match=r"Affine: x is \[2, 3\], must be \[\*, 2\]"):
            session.run(None, {"x": np.ones((2, 3), np.float32)})
        assert session.run(None, {"x": np.ones((1, 2), np.float32)})[0].tolist() == [[1, 1]]


class TestMemoryAndThreads:
    def test_an_input_is_written_in_place(self, open_toy):
        session = open_toy("Append", [("cache", FLOAT, 2), ("row", FLOAT, 1), ("at", INT64, 1)], [("sum", FLOAT)])
        cache = np.zeros((3, 2), np.float32)
        for at in (0, 1):
            (total,) = session.run(None, {"cache": cache, "row": np.array([1, 2], np.float32), "at": np.array([at])})
        assert cache.tolist() == [[1, 2], [1, 2], [0, 0]]
        assert total.tolist() == [2, 4]
        with pytest.raises(Exception, match="Append: at is 3, must be below 3"):
            session.run(None, {"cache": cache, "row": np.ones(2, np.float32), "at": np.array([3])})
        assert cache.tolist() == [[1, 2], [1, 2], [0, 0]]

    @pytest.mark.parametrize("threads", [1, 2, 4])
    @pytest.mark.parametrize("size", [1, 2, 100])
    def test_phases(self, open_toy, threads, size):
        session = open_toy("Rounds", [("x", INT64, 1)], [("y", INT64), ("threads", INT64)], threads, rounds=6)
        expected = x = np.arange(size)
        for _ in range(6):
            expected = expected + np.roll(expected, -1)
        for _ in range(20):
            y, used = session.run(None, {"x": x})
            assert np.array_equal(y, expected)
            assert 1 <= used[0] <= threads

    def test_threads_that_are_given_later_and_taken_back(self, open_toy, toy_library):
        session = open_toy("Rounds", [("x", INT64, 1)], [("y", INT64), ("threads", INT64)], 1, rounds=6)

        def most_threads(threads):
            toy_library.use_threads(threads)
            return max(session.run(None, {"x": np.arange(100_000)})[1][0] for _ in range(5))

        assert [most_threads(1), most_threads(0), most_threads(-1)] == [1, 1, 1]
        assert most_threads(1000) <= 64
        assert most_threads(2) in (1, 2)
        assert most_threads(1) == 1

    def test_memory_that_is_not_there(self, open_toy):
        session = open_toy("Greedy", [("x", FLOAT, 1)], [("y", FLOAT)])
        with pytest.raises(Exception, match="Greedy: Failed to allocate"):
            session.run(None, {"x": np.ones(1, np.float32)})

    def test_every_session_keeps_its_instruction_set(self, open_toy, toy_library):
        def which(isa):
            toy_library.select(isa)
            return open_toy("WhichIsa", [("x", FLOAT, 1)], [("isa", INT64)])

        sessions = {isa: which(isa) for isa in (*toy_library.isa_names, None)}
        for isa, session in sessions.items():
            (found,) = session.run(None, {"x": np.ones(1, np.float32)})
            assert ISAS[found[0]] == (isa or toy_library.isa_names[0])
