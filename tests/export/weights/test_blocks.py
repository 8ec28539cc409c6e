from __future__ import annotations

from contextlib import ExitStack

import gguf
import numpy as np
import pytest

from edge_rt.errors import InvalidModelFile, StorageError
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.blocks import (
    PIECE_BYTES,
    float_rows,
    iter_rows,
    read_rows,
    unpermuted_rows,
)

ROWS, COLUMNS = 7, 96


def tensor_of(type_name, shape=(COLUMNS, ROWS), offset=0, nbytes=None):
    kind = gguf.GGMLQuantizationType[type_name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    elements = int(np.prod(shape))
    return TensorInfo(
        name="t", shape=shape, type_id=int(kind), type_name=type_name, offset=offset,
        nbytes=elements // block * size if nbytes is None else nbytes,
    )  # fmt: skip


class TestFloats:
    @pytest.mark.parametrize(("type_name", "dtype"), [("F32", "<f4"), ("F16", "<f2")])
    def test_stay_as_they_are(self, type_name, dtype):
        values = np.arange(12, dtype=dtype).reshape(3, 4)
        found = float_rows(tensor_of(type_name, (4, 3)), values.view(np.uint8))
        assert found.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(found, values)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize(("type_name", "dtype"), [("F32", "<f4"), ("F16", "<f2")])
    def test_that_are_no_numbers(self, type_name, dtype, bad):
        values = np.asarray([[1, bad]], dtype)
        with pytest.raises(InvalidModelFile, match="not finite"):
            float_rows(tensor_of(type_name, (2, 1)), values.view(np.uint8))


@pytest.fixture
def opened(tmp_path):
    """Return a function that writes bytes to a file and opens it."""
    with ExitStack() as stack:

        def make(data):
            (tmp_path / "data").write_bytes(data)
            return stack.enter_context(TensorReader([tmp_path / "data"]))

        yield make


class TestReading:
    def test_pieces_are_whole_rows_in_order(self, opened):
        row_bytes = PIECE_BYTES // 3
        data = np.repeat(np.arange(8, dtype=np.uint8), row_bytes)
        tensor = tensor_of("F32", (row_bytes // 4, 8), offset=5, nbytes=data.nbytes)
        pieces = list(iter_rows(opened(bytes(5) + data.tobytes()), tensor))
        assert [piece.shape for piece in pieces] == [(3, row_bytes), (3, row_bytes), (2, row_bytes)]
        assert [int(row[0]) for piece in pieces for row in piece] == list(range(8))

    def test_a_vector_is_one_row(self, opened):
        values = np.arange(6, dtype="<f4")
        assert read_rows(opened(values.tobytes()), tensor_of("F32", (6,))).shape == (1, 24)

    def test_a_file_that_became_shorter(self, opened):
        with pytest.raises(StorageError, match="20 of 24 bytes came"):
            read_rows(opened(bytes(20)), tensor_of("F32", (6,)))


class TestUnpermute:
    def test_undoes_what_converters_do(self):
        heads, head_dim = 3, 8
        rows = np.arange(heads * head_dim)
        # The permutation of llama.cpp's converter: halves of a head become adjacent pairs.
        permuted = rows.reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)
        np.testing.assert_array_equal(permuted[unpermuted_rows(heads, head_dim)], rows)
