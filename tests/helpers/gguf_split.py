"""GGUF files in several parts, as llama.cpp's gguf-split writes them."""

from __future__ import annotations

import gguf


def split(source, folder, count, *, change=lambda number, keys, names: None):
    """Write a checkpoint in ``count`` parts, as gguf-split does; return their paths."""
    whole = gguf.GGUFReader(source)
    tensors, paths = list(whole.tensors), []
    for number in range(count):
        paths.append(folder / f"m-{number + 1:05}-of-{count:05}.gguf")
        writer = gguf.GGUFWriter(paths[-1], "llama")
        keys = {"split.no": number, "split.count": count, "split.tensors.count": len(tensors)}
        mine = [tensor.name for tensor in tensors[number::count]]
        change(number, keys, mine)
        if number:
            del writer.kv_data[0]["general.architecture"]
        else:
            copy_metadata(whole, writer)
        for key, value in keys.items():
            (writer.add_int32 if key.endswith("tensors.count") else writer.add_uint16)(key, value)
        for tensor in tensors:
            if tensor.name in mine:
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def copy_metadata(reader, writer):
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        writer.add_key_value(key, field.contents(), kind, field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None)
