"""A drafter of a few hundred kilobytes at most, for a package of any size, and changing one so that it disagrees."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

from edge_rt.package.drafter import (
    AcceptanceRecord,
    DrafterInfo,
    DraftTarget,
    ExitRecord,
    HeadInfo,
    TrainingRecord,
)
from edge_rt.package.drafter_tensors import VOCABULARY, head_tensors, tensor_bytes
from edge_rt.package.writer import DrafterWriter
from tests.helpers.packages import edit_manifest, replace_file

TARGET = DraftTarget(
    name="Tiny ünï",
    source_sha256="0" * 64,
    quantisation={"embedding": "Q8_0", "attention": "Q4_1"},
    tokenizer_sha256="44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    hidden_size=64,
    vocab_size=419,
    num_layers=2,
)
INFO = DrafterInfo(
    format_version=1,
    producer="edge-rt 0.1.0",
    name="tiny-head",
    kind="head",
    target=TARGET,
    head=HeadInfo(1, 32, 1e-5, {"fc": "w4m", "gate_up": "w4", "down": "w8"}, 20),
    training=TrainingRecord(1000, 2.5, 300, 7, "head-1", "answers to questions", 0.25),
    acceptance=AcceptanceRecord(500, (0.5, 0.25), 0.6, 0.75),
    license="apache-2.0",
)
EXIT_INFO = dataclasses.replace(
    INFO,
    name="tiny-exits",
    kind="exit",
    target=dataclasses.replace(TARGET, num_layers=6),
    acceptance=AcceptanceRecord(500, (0.5,), 0.6, 0.75),
    exits=(ExitRecord(1, 0.25, 0.375, 0.5), ExitRecord(4, 0.5, 0.6, 0.75)),
)


def ids_bytes(ids):
    """Return token ids as the tensor ``vocabulary``."""
    return b"".join(token_id.to_bytes(4, "little", signed=True) for token_id in ids)


def tensors_of(info, seed=0, ids=None):
    """Return bytes for the tensors of a drafter: noise, and the first tokens of the vocabulary backwards."""
    noise, size = random.Random(seed), info.head.vocabulary_size
    wanted = head_tensors(info.head, info.target.hidden_size, info.layers)
    result = {name: noise.randbytes(tensor_bytes(dtype, shape)) for name, (dtype, shape) in wanted.items()}
    return result | {VOCABULARY: ids_bytes(ids or range(size - 1, -1, -1))}


def write_drafter(destination, info=INFO, tensors=None, *, force=False):
    """Write a drafter and return it opened."""
    with DrafterWriter(destination, force=force) as writer:
        return writer.publish(info, tensors_of(info) if tensors is None else tensors)


def for_package(destination, manifest, **changes):
    """Write a drafter that fits a package."""
    return write_drafter(destination, dataclasses.replace(INFO, target=DraftTarget.of(manifest), **changes))


def edit_description(drafter: Path, change) -> None:
    """Rewrite ``drafter.json`` after ``change(document)``, which may also return another document."""
    edit_manifest(drafter, change, "drafter.json")


def replace_weights(drafter: Path, data: bytes) -> None:
    """Write ``weights.bin`` and list its new size and hash."""
    replace_file(drafter, "weights.bin", data, "drafter.json")
