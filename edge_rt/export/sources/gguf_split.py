"""A GGUF checkpoint in one file, or split into several by llama.cpp's ``gguf-split``.

Parts are named ``NAME-00001-of-00003.gguf`` and so on. The first part has the metadata of the model; every part has
``split.no`` (counted from 0), ``split.count`` and ``split.tensors.count``, and the data of the tensors that it names.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from edge_rt.errors import InvalidModelFile, ModelNotFound
from edge_rt.export.sources.gguf_header import read_header
from edge_rt.export.sources.gguf_types import FETCH_AGAIN, GGUFHeader, TensorInfo, shown
from edge_rt.system.checkpoint_names import MAX_PARTS, parse_split_name


def read_gguf(path: Path) -> GGUFHeader:
    """Read and check the header of a checkpoint; any part stands for a split one."""
    header = read_header(path, may_be_part=True)
    count = header.get_int("split.count", default=1, minimum=0, maximum=MAX_PARTS)
    return header if count <= 1 else _join([_part(path, number, count) for number in range(count)])


def _part(path: Path, number: int, count: int) -> GGUFHeader:
    """Read part ``number`` of the split model that a file belongs to."""
    named = parse_split_name(path.name)
    if named is None or named.count != count:
        raise InvalidModelFile(
            f"{path.name}: the name of this part of a split model does not follow the others'.",
            f"It says that there are {count} parts; the name should end with -00001-of-{count:05}.gguf or so.",
            "Give the parts the names that they had.",
        )
    file = path.with_name(named.names[number])
    if not file.exists():
        raise ModelNotFound(
            f"{file.name}: this part of a split model is missing.",
            f"The model has {count} parts, all in one folder: {path.parent}.",
            "Fetch it, too.",
        )
    header = read_header(file, may_be_part=True)
    for key, wanted in (("split.count", count), ("split.no", number)):
        if (found := header.get_int(key)) != wanted:
            raise InvalidModelFile(
                f"{file.name}: '{key}' contradicts the file's name.",
                f"It is {found}, by the name it is {wanted}.",
                FETCH_AGAIN,
            )
    return header


def _join(parts: list[GGUFHeader]) -> GGUFHeader:
    first = parts[0]
    tensors: dict[str, TensorInfo] = {}
    for number, part in enumerate(parts):
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise InvalidModelFile(
                    f"{part.path.name}: the tensor {shown(name)} is in another part of the model, too.",
                    f"The other one is {parts[tensors[name].file].path.name}.",
                    FETCH_AGAIN,
                )
            tensors[name] = dataclasses.replace(tensor, file=number)
    stated = first.get_int("split.tensors.count", default=len(tensors))
    if stated != len(tensors):
        raise InvalidModelFile(
            f"{first.path.name}: parts of the split model are not of one model.",
            f"It has {stated} tensors by the first part, {len(tensors)} are in the {len(parts)} parts.",
            FETCH_AGAIN,
        )
    return dataclasses.replace(
        first,
        file_size=sum(part.file_size for part in parts),
        tensors=tensors,
        more_paths=tuple(part.path for part in parts[1:]),
    )
