"""Cases of model families as folders and GGUF files, described and read."""

from __future__ import annotations

import numpy as np

from edge_rt.export.opening import open_checkpoint
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.matrices import CheckpointMatrices
from tests.helpers.family_cases import load_case, write_folder, write_gguf


def opened(tmp_path, case, **config):
    return open_checkpoint(write_folder(tmp_path / "folder", load_case(case), config=config))[1]


def opened_file(tmp_path, case, **options):
    return open_checkpoint(write_gguf(tmp_path / "m.gguf", load_case(case), **options))[1]


def read_all(path):
    """Return every tensor of a checkpoint, in float32, by its name, and those that are not read as they are stored."""
    source, _ = open_checkpoint(path)
    with TensorReader(source.paths) as stream:
        matrices = CheckpointMatrices(stream, source.tensors)
        return source, {name: np.concatenate(list(matrices.pieces(name))) for name in source.tensors}
