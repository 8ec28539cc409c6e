"""Opens a checkpoint for an export: a GGUF file in one or several parts, or a folder of transformers.

Headers are judged here before numpy is imported, so that a refusal takes no time and no memory.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from edge_rt.errors import ConfigError, ModelNotFound
from edge_rt.export.families.header import read_header_decoder
from edge_rt.export.sources.adapters import is_gguf_adapter
from edge_rt.export.sources.gguf_split import read_gguf
from edge_rt.ort.op_library import library_path
from edge_rt.package.op_list import not_carried, part_without_operator
from edge_rt.package.weights_info import require_known

if TYPE_CHECKING:
    from edge_rt.export.families.family import Family
    from edge_rt.export.sources.adapters import Adapter
    from edge_rt.export.sources.gguf_types import GGUFHeader, TensorInfo
    from edge_rt.export.sources.source import Source
    from edge_rt.package.decoder import Decoder
    from edge_rt.package.layers import Layer


MAX_SCALE: Final = 1e6
"""Largest factor on what an adapter adds."""
NO_ADAPTERS: Final[Mapping[Path, float]] = MappingProxyType({})


def open_checkpoint(
    path: Path, adapters: Mapping[Path, float] = NO_ADAPTERS, *, rounds: bool = False
) -> tuple[Source, Decoder]:
    """Read and check the headers of a checkpoint; numpy is not loaded for one that is refused.

    Args:
        rounds: whether types were chosen for the package; else adapters of a quantised checkpoint are refused.
    """
    source, decoder, family = _open(path)
    if not adapters:
        return source, decoder
    from edge_rt.export.families.adapted import merge_adapters

    read = [
        _read_adapter(one, scale, len(source.paths) + number) for number, (one, scale) in enumerate(adapters.items())
    ]
    return merge_adapters(source, decoder, family, read, rounds=rounds)


def _open(path: Path) -> tuple[Source, Decoder, Family]:
    if path.is_dir():
        from edge_rt.export.families.folder import read_folder_decoder
        from edge_rt.export.sources.hf_folder import hf_source, read_hf_folder
        from edge_rt.export.sources.peft_adapter import require_model

        remark = require_model(path)
        # A model that cannot be run is refused for that, whatever else is wrong with its files.
        check_folder_config(path, path.resolve().name)
        folder = read_hf_folder(path)
        family, decoder, tensors, remarks = read_folder_decoder(folder)
        source = hf_source(
            folder, tensors, remarks, has_halves=family.config_has_halves, norm_offset=family.config_norm_offset
        )
        source = replace(source, ahead=_ahead(family, decoder, tensors))
        return source if remark is None else replace(source, remarks=(*remarks, remark)), decoder, family
    header = read_gguf(path)
    if is_gguf_adapter(header):
        raise ModelNotFound(
            f"{path.name} is an adapter, not a model.",
            "'general.type' is 'adapter'.",
            f"Export it with its model: edge-rt export -m BASE --adapter {shlex.quote(str(path))} --out DIR",
        )
    family, decoder, found = read_header_decoder(header)
    source = _gguf_source(header, found, has_halves=family.header_has_halves)
    return replace(source, ahead=_ahead(family, decoder, found)), decoder, family


def _ahead(family: Family, decoder: Decoder, tensors: Mapping[str, TensorInfo]) -> Layer | None:
    """Return the layer of a checkpoint's block that predicts further ahead, if it has one."""
    has_one = f"blk.{decoder.num_layers}.nextn.eh_proj.weight" in tensors
    return family.ahead(decoder) if family.ahead is not None and has_one else None


def _read_adapter(path: Path, scale: float, number: int) -> Adapter:
    """Read the headers of an adapter; ``number`` is that of its tensors' file."""
    if not abs(scale) <= MAX_SCALE:
        raise ConfigError(
            "The scale of an adapter is out of range.",
            f"Got {scale} for {path}, at most {MAX_SCALE:g}.",
            "Usual scales are 0 to 1.",
        )
    if path.is_dir():
        from edge_rt.export.sources.peft_adapter import read_peft_adapter

        return read_peft_adapter(path, scale, number)
    if not path.exists():
        raise ModelNotFound(
            f"There is no adapter {path}.",
            "An adapter is a folder or a GGUF file on this machine.",
            "Check the path; an adapter of the Hugging Face Hub is fetched with: hf download NAME --local-dir DIR",
        )
    from edge_rt.export.sources.adapters import read_gguf_adapter

    return read_gguf_adapter(path, scale, number)


def check_folder_config(folder: Path, name: str) -> Decoder:
    """Return the description of a folder's model, by its ``config.json`` alone; what has none is refused."""
    from edge_rt.export.sources.hf_folder import read_hf_config

    return describe_config(name, read_hf_config(folder))


def check_operators(decoder: Decoder) -> None:
    """Refuse a model with a part that no operator computes, before its weights are fetched."""
    if (part := part_without_operator(decoder)) is not None:
        raise not_carried(decoder, part)


def describe_config(name: str, config: Mapping[str, Any]) -> Decoder:
    """Return the description of the model that a ``config.json`` stands for."""
    from edge_rt.export.families.folder import describe_folder
    from edge_rt.export.sources.hf_folder import HFFolder
    from edge_rt.export.sources.safetensors_folder import SafetensorsFolder

    return describe_folder(HFFolder(Path(name), config, SafetensorsFolder((), {})))[1]


@dataclass(frozen=True)
class PackageSizes:
    """What an export would make of a checkpoint.

    Attributes:
        embedding_bytes: of a token embedding that is not shared with the head; 0 if it is.
        table_bytes: of further embeddings for each layer, of which a pass reads a row a token; 0 if there are none.
        notes: what an export does without being asked: sentences for the user.
    """

    decoder: Decoder
    op_profile: str
    weights_bytes: int
    embedding_bytes: int
    table_bytes: int
    tokenizer_bytes: int
    notes: tuple[str, ...]


def package_sizes(path: Path, weights: str | None = None) -> PackageSizes:
    """Return the sizes of the package that a checkpoint would become, from its headers alone."""
    require_known(weights)
    source, decoder = open_checkpoint(path)
    from edge_rt.export.decoder.weights import collect_weights, place_weights
    from edge_rt.export.op_profile import choose_profile
    from edge_rt.export.quantise.decision import choose_weights

    profile = choose_profile(None, "int8", library_path(), decoder)
    choice = choose_weights(source, decoder, weights, has_tables=profile.has_tables)
    linears = collect_weights(source, decoder, profile, choice.types)
    layout = place_weights(linears, decoder, profile, is_calibrated=profile.has_4_bit_keys)
    elements = source.num_parameters
    notes: tuple[str, ...] = ()
    if weights is None and choice.name == "int4":
        bits = f"{8 * layout.size / elements:.1f} bits a weight, embedding and head included"
        text = f"An export makes 4 bits of these floats ({bits})"
        notes = (f"{text}; --weights int8, f16, f32 or keep chooses otherwise.",)

    def bytes_of(linear: str) -> int:
        return sum(slot.nbytes for name, slot in layout.slots.items() if name.startswith(f"{linear}."))

    tokenizer = source.build_tokenizer(decoder.vocab_size)
    return PackageSizes(
        decoder=decoder,
        op_profile=profile.name,
        weights_bytes=layout.size,
        embedding_bytes=0 if decoder.is_tied else bytes_of("embedding"),
        table_bytes=bytes_of("per_layer_table"),
        tokenizer_bytes=len(tokenizer.json_text.encode("utf-8", "surrogatepass")),
        notes=notes,
    )


def has_same_types(path: Path, one: str, other: str, profile: str) -> bool:
    """Return whether two choices of weights give every matrix of a checkpoint the same type."""
    source, decoder = open_checkpoint(path)
    from edge_rt.export.quantise.decision import choose_weights

    choices = [choose_weights(source, decoder, name, has_tables=profile == "native") for name in (one, other)]
    first, second = (
        {name: choice.types.get(name, tensor.type_name) for name, tensor in source.tensors.items()}
        for choice in choices
    )
    return first == second and not any(choice.rivals for choice in choices)


def _gguf_source(header: GGUFHeader, tensors: Mapping[str, TensorInfo], *, has_halves: bool) -> Source:
    """Return the checkpoint that a header describes; fused tensors are apart."""
    from edge_rt.export.sources.gguf_tokenizer import build_tokenizer, end_token
    from edge_rt.export.sources.pooling import read_gguf_pooling
    from edge_rt.export.sources.sampling_advice import read_advice
    from edge_rt.export.sources.source import Source

    remarks: tuple[str, ...] = ()
    if any(tensor.type_name == "NVFP4" for tensor in tensors.values()):
        from edge_rt.export.sources.compound import conversion_remarks

        remarks = conversion_remarks(tensors.values())
    return Source(
        kind="gguf",
        path=header.path,
        paths=header.paths,
        size=header.file_size,
        tensors=tensors,
        has_halves=has_halves,
        license=cast("str | None", header.get_str("general.license", default=None)),
        build_tokenizer=lambda rows: build_tokenizer(header.metadata, rows),
        read_advice=lambda: read_advice(header),
        read_pooling=lambda: read_gguf_pooling(header, end_token(header.metadata)),
        remarks=remarks,
    )
