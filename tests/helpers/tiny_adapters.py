"""Adapters of exits whose guesses are known: those of the model's own head, or of states whose numbers are moved."""

from __future__ import annotations

import dataclasses

import numpy as np

from edge_rt.export.weights.codes import Codes
from edge_rt.export.weights.tile_formats import TILE_FORMATS
from edge_rt.export.weights.tiles import pack_rows
from edge_rt.ort.mapped_weights import MappedWeights
from edge_rt.ort.session import pool_size
from edge_rt.package.drafter import DraftTarget, ExitRecord
from edge_rt.package.drafter_tensors import head_tensors
from edge_rt.package.reader import open_package
from edge_rt.runtime.speculation.exit_adapters import ExitAdapters
from edge_rt.runtime.speculation.head_matrices import target_matrices
from edge_rt.runtime.speculation.head_runner import DrafterJob
from edge_rt.system.machine import usable_cpus
from tests.helpers.segmented import EXITS
from tests.helpers.tiny_drafter import EXIT_INFO, ids_bytes, write_drafter

HIDDEN, INNER = 64, 32


def tiles(matrix):
    """Return a matrix of zeros and ones in tiles of 4 bits, which hold it exactly but for the rounding of 1/15."""
    rows, columns = matrix.shape
    scale = np.full((rows, columns // 32), 1 / 15, np.float16)
    found = Codes((15 * matrix).astype(np.uint8), d=scale, m=np.zeros_like(scale))
    return pack_rows(found, TILE_FORMATS["w4m"]).tobytes()


def adapters_of(package, folder, exits=EXITS, *, moved=0, vocabulary=419):
    """Write adapters that say what the model's head says at an exit, of states moved by so many numbers."""
    opened = open_package(package)
    manifest = opened.manifest
    target = DraftTarget.of(manifest)
    head = dataclasses.replace(
        EXIT_INFO.head, formats=dict.fromkeys(("fc", "gate_up", "down"), "w4m"), vocabulary_size=vocabulary
    )
    records = tuple(ExitRecord(layer, 0.5, 0.6, 0.7) for layer in exits)
    info = dataclasses.replace(EXIT_INFO, target=target, head=head, exits=records)
    place, length = opened.tensors[manifest.segments[-1].graph]["final_norm"][:2]
    norm = (package / "weights.bin").read_bytes()[place : place + length]
    one = np.ones(HIDDEN, np.float32).tobytes()
    tensors = {}
    for name, (dtype, shape) in head_tensors(head, HIDDEN, exits).items():
        if name.endswith("fc.tiles"):
            tensors[name] = tiles(np.eye(HIDDEN, 2 * HIDDEN, moved))
        elif dtype == "uint8":
            columns = HIDDEN if "gate_up" in name else INNER
            tensors[name] = tiles(np.zeros((16 * shape[0], columns)))
        elif dtype == "float32":
            tensors[name] = norm if name.endswith("output_norm") else one
        else:
            tensors[name] = ids_bytes(range(vocabulary))
    return write_drafter(folder, info, tensors)


def load_adapters(package, drafter, prompt_rows=0):
    opened = open_package(package)
    target = target_matrices(opened, MappedWeights(opened), is_resident=True)
    return ExitAdapters(DrafterJob(opened, target, drafter, 8, prompt_rows, pool_size() or usable_cpus(), None))
