"""The embedding and the LM head of a package, mapped: the bytes that its graph reads."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest

from edge_rt.errors import ConfigError
from edge_rt.export import export_model
from edge_rt.ort.mapped_weights import MappedWeights
from edge_rt.package.reader import open_package
from edge_rt.runtime.speculation.head_matrices import target_matrices
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.native_profile import require_native


@pytest.fixture(scope="module", params=[True, False])
def package(request, tmp_path_factory):
    require_native()
    folder = tmp_path_factory.mktemp("target")
    write_llama_gguf(folder / "m.gguf", tied=request.param)
    export_model(folder / "m.gguf", folder / "package", profile="native", calibration=None)
    return open_package(folder / "package")


def in_graph(package):
    """Return name -> offset, length, type and shape, as the library for ONNX reads them."""
    model = onnx.load(package.file("model.onnx"), load_external_data=False)
    found = {}
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            found[tensor.name] = (
                int(entries["offset"]),
                int(entries["length"]),
                tensor.data_type,
                tuple(tensor.dims),
            )
    return found


def matrices_of(package, is_resident=True):
    return target_matrices(package, MappedWeights(package), is_resident=is_resident)


def test_places_are_those_of_the_graph(package):
    found = package.tensors["model.onnx"]
    assert found == in_graph(package)
    assert "layer1.down.tiles" in found


def test_matrices_are_the_bytes_of_the_graph(package):
    found, places, data = matrices_of(package), in_graph(package), package.file("weights.bin").read_bytes()
    head = "embedding" if package.manifest.model.is_tied else "head"
    for array, name in ((found.embedding, "embedding"), (found.lm_head, head)):
        offset, length = places[f"{name}.tiles"][:2]
        assert array.tobytes() == data[offset : offset + length]
        assert (array.dtype, array.ndim) == (np.uint8, 3)
    assert not found.embedding.flags.writeable
    assert found.embedding_format in ("w8", "w4", "w4m")


def test_rows_of_several_types_are_refused(package):
    manifest = dataclasses.replace(package.manifest, quantisation={"embedding": "Q8_0+Q4_0"})
    with pytest.raises(ConfigError, match=r"with the embedding of this package.*Q8_0\+Q4_0"):
        matrices_of(dataclasses.replace(package, manifest=manifest))


def test_nested_rows_are_refused(tmp_path):
    require_native()
    types = dict.fromkeys(("weight_type", "embedding_type", "output_type"), "F32")
    write_llama_gguf(tmp_path / "m.gguf", **types)
    export_model(tmp_path / "m.gguf", tmp_path / "package", profile="native", weights="nested8", calibration=None)
    with pytest.raises(ConfigError, match=r"with the embedding of this package.*W8N"):
        matrices_of(open_package(tmp_path / "package"))
