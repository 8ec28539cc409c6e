"""Files of weights, mapped once."""

from __future__ import annotations

import gc
import mmap
import sys

import numpy as np
import onnx
import pytest

from edge_rt.errors import InvalidPackage, StorageError
from edge_rt.ort.mapped_weights import MappedFile, MappedWeights
from edge_rt.ort.session import Session, pool_size
from edge_rt.package.layer_sizes import is_rotation
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.reader import open_package
from edge_rt.system.machine import usable_cpus
from edge_rt.system.process_memory import read_mappings
from tests.helpers.packages import copied, replace_file

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="mappings are read in /proc")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(np.arange(1 << 18, dtype=np.float32).tobytes())
    return path


def mappings_of(path):
    return [one for one in read_mappings() if one.path == str(path.resolve())]


def opened(package, graph, weights=None):
    return Session(
        package.file(graph),
        threads=pool_size() or usable_cpus(),
        profile="native",
        initializers=None if weights is None else weights.constants(graph),
    )


def test_arrays_are_parts_of_the_file_and_cannot_be_written(file):
    mapped = MappedFile(file, 1 << 20)
    array = mapped.array(8, 24, np.float32, (2, 3))
    assert array.tolist() == [[2, 3, 4], [5, 6, 7]]
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="reshape"):
        mapped.array(8, 24, np.float32, (2, 4))


@needs_linux
def test_a_file_is_mapped_until_its_last_array_is_gone(file):
    array = MappedFile(file, 1 << 20).array(4096, 8, np.float32, (2,))
    gc.collect()
    assert len(mappings_of(file)) == 1
    assert array.tolist() == [1024, 1025]
    del array
    gc.collect()
    assert mappings_of(file) == []


@needs_linux
def test_pages_that_are_given_back_are_read_again(file):
    mapped = MappedFile(file, 1 << 20)
    expected = mapped.bytes.sum(dtype=np.int64)
    assert sum(one.resident_bytes for one in mappings_of(file)) == 1 << 20
    mapped.give_back(5000, 1 << 19)
    # The page in which the part begins or ends is given back as well.
    assert sum(one.resident_bytes for one in mappings_of(file)) <= 1 << 19
    assert mapped.bytes.sum(dtype=np.int64) == expected


@pytest.mark.parametrize(("size", "found"), [(0, 0), (4097, 4096)])
def test_a_file_that_is_too_short_is_refused(tmp_path, size, found):
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(found))
    with pytest.raises(InvalidPackage, match="shorter than it was"):
        MappedFile(path, size)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"weights\.bin cannot be read"):
        MappedFile(tmp_path / "weights.bin", 8)


@needs_linux
def test_graphs_share_one_mapping_which_ends_with_the_last_of_them(segmented):
    package = open_package(segmented.cut)
    weights, path = MappedWeights(package), package.file(WEIGHTS_FILE)
    sessions = [opened(package, graph, weights) for graph in package.manifest.graphs]
    assert len(sessions) > 2
    assert len(mappings_of(path)) == 1
    binding = sessions[0].binding()
    del weights, sessions
    gc.collect()
    assert len(mappings_of(path)) == 1
    del binding
    gc.collect()
    assert mappings_of(path) == []


@needs_linux
def test_rotations_of_further_positions_are_a_mapping_of_their_own(segmented):
    package = open_package(segmented.cut)
    weights, path = MappedWeights(package), package.file(WEIGHTS_FILE)
    whole = weights.file.bytes.tobytes()
    weights.use_positions(1 << 30)
    assert len(mappings_of(path)) == 1
    rotations = {
        place.offset: place
        for tensors in package.tensors.values() for name, place in tensors.items() if is_rotation(name)
    }  # fmt: skip
    weights.use_positions(1)
    parts = sum(place.length > 2 * mmap.PAGESIZE for place in rotations.values())
    assert parts
    assert 1 + parts <= len(mappings_of(path)) <= 1 + 2 * parts
    assert weights.file.bytes.tobytes() == whole


@pytest.mark.parametrize("change", ["type", "shape", "negative shape", "many dimensions"])
def test_constants_that_do_not_fit_are_left_to_onnx_runtime(native_package, tmp_path, change):
    """They are refused as if nothing were handed over, and nothing is read beyond the file."""
    path = copied(native_package, tmp_path)
    model = onnx.load(path / "model.onnx", load_external_data=False)
    tensor = next(one for one in model.graph.initializer if one.name == "layer0.down.tiles")
    if change == "type":
        tensor.data_type = onnx.TensorProto.DOUBLE
    elif change == "shape":
        tensor.dims[0] += 1
    elif change == "negative shape":
        tensor.dims[0], tensor.dims[1] = -tensor.dims[0], -tensor.dims[1]
    else:
        tensor.dims[:] = [*[1] * 100, *tensor.dims]
    replace_file(path, "model.onnx", model.SerializeToString())
    package = open_package(path)
    weights = MappedWeights(package)
    handed = weights.constants("model.onnx")
    assert package.tensors["model.onnx"].keys() - handed.keys() == {"layer0.down.tiles"}
    # More dimensions than numpy has arrays of are no fault for ONNX Runtime.
    if change == "many dimensions":
        return
    errors = []
    for given in (weights, None):
        with pytest.raises(InvalidPackage) as caught:
            opened(package, "model.onnx", given)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
