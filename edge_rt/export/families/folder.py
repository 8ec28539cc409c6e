"""A folder of transformers as a described decoder with its tensors, under the names that GGUF files have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, StorageError
from edge_rt.export.decoder.tensors import (
    Shapes,
    ahead_shapes,
    check_shapes,
    expected_shapes,
    held_by,
    is_fused,
    name_in_layer,
    require_no_surplus,
    split_fused,
    unread_tensors,
)
from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.family import Family
from edge_rt.export.families.registry import MODEL_TYPES, family_of_config, require_decoder
from edge_rt.export.sources.gguf_types import COMPOUND_TYPE_ID, TensorInfo
from edge_rt.export.sources.hf_folder import HFFolder, float_tensor
from edge_rt.export.sources.packed_config import read_packed_settings
from edge_rt.export.sources.safetensors_folder import StoredTensor
from edge_rt.package.ahead import with_block
from edge_rt.package.decoder import Decoder
from edge_rt.package.reader import stored_name
from edge_rt.system.checkpoint_names import CONFIG_FILE, folder_name

_CHECK_CONFIG: Final = (
    f"Check {CONFIG_FILE}: its numbers, such as num_hidden_layers, do not fit the tensors. Or fetch the model again."
)
_IGNORED: Final = ("rotary_emb.inv_freq",)
"""Ends of names of tensors that older versions of transformers wrote and that hold nothing new."""
PREFIXES: Final = ("model.", "model.language_model.", "language_model.model.", "backbone.", "")
"""What may precede the names of the text model's tensors: the second and third belong to models that also see or hear,
and the last one to models without a head, such as those for embeddings."""
HEADS: Final = ("lm_head.weight", "language_model.lm_head.weight")
_CHUNK: Final = 1 << 20
"""Bytes that are compared at a time."""


def text_config(folder: HFFolder) -> ConfigReader:
    """Return the part of ``config.json`` that describes the text model."""
    where, values = folder.path.name, folder.config
    text: Any = values.get("text_config")
    # A model that also sees is described as a whole where its own type is that of a text model.
    if isinstance(text, dict) and text.get("model_type") in MODEL_TYPES:
        # Whether the head is tied is said by the whole; where it is silent, a head that is stored tells.
        is_tied = values.get("tie_word_embeddings")
        return ConfigReader(where, {**text, "tie_word_embeddings": True if is_tied is None else is_tied})
    return ConfigReader(where, values)


def describe_folder(folder: HFFolder) -> tuple[Family, Decoder]:
    """Return the family and the description of a folder's model, from its ``config.json`` alone."""
    require_decoder(folder.path.name, folder.config)
    config = text_config(folder)
    family = family_of_config(folder.path.name, config.text("model_type"))
    decoder = family.from_config(config, stored_name(Path(folder_name(folder.path)))[:200])
    config.refuse_variants()
    read_packed_settings(folder.path.name, folder.config)
    try:
        decoder.check()
    except ValueError as error:
        raise InvalidModelFile(
            f"{folder.path.name}: the numbers in {CONFIG_FILE} contradict each other.",
            f"{error}.",
            "Fetch the model again.",
        ) from error
    return family, decoder


def read_folder_decoder(folder: HFFolder) -> tuple[Family, Decoder, dict[str, TensorInfo], tuple[str, ...]]:
    """Return the family, the description, the tensors under GGUF's names, and remarks as in ``Source``."""
    family, decoder = describe_folder(folder)
    if decoder.is_tied and _has_own_head(folder, family):
        decoder = replace(decoder, is_tied=False)
    tensors = _renamed(folder, family, decoder)
    block = family.ahead(decoder) if family.ahead is not None and _found_ahead(folder, family, decoder) else None
    tensors = split_fused(folder.path.name, tensors, decoder if block is None else with_block(decoder, block))
    names, _ = _names(folder, family, decoder)
    called = {ours: hf for hf, ours in reversed(names.items()) if hf.endswith(("weight", "bias"))}
    expected = _expected(folder, family, decoder)
    check_shapes(folder.path.name, tensors, expected, called, _CHECK_CONFIG)
    require_no_surplus(folder.path.name, [name for name in tensors if name not in expected])
    if family.config_factors is not None:
        from edge_rt.export.weights.derived import scaled_tensor

        factors = family.config_factors(text_config(folder), decoder)
        tensors |= {name: scaled_tensor(tensors[name], some) for name, some in factors.items()}
    return family, decoder, tensors, _remarks(tensors)


def _remarks(tensors: Mapping[str, TensorInfo]) -> tuple[str, ...]:
    """Return what is not read as it is stored."""
    if all(tensor.type_id != COMPOUND_TYPE_ID for tensor in tensors.values()):
        return ()
    from edge_rt.export.sources.compound import conversion_remarks

    return conversion_remarks(tensors.values())


AHEAD: Final = "mtp."
"""Begin of the names of a block that predicts further ahead."""


def _found_ahead(folder: HFFolder, family: Family, decoder: Decoder) -> dict[str, str]:
    """Return transformers' names of such a block's tensors -> GGUF's; none if it is not whole, or there is a second."""
    stored = folder.weights.tensors
    if family.ahead is None or any(name.startswith(f"{AHEAD}layers.1.") for name in stored):
        return {}
    layer = family.ahead(decoder)
    experts = 0 if layer.experts is None else layer.experts.count
    modules = {f"{AHEAD}{hf}": ours for hf, ours in family.ahead_names.items()}
    modules |= {f"{AHEAD}layers.0.{hf}": ours for hf, ours in _expanded(family.layer_names, experts)}
    shapes, names = ahead_shapes(decoder, layer), dict[str, str]()
    for hf, ours in modules.items():
        # Tensors of all experts of a layer have no end.
        name = next((one for one in (f"{hf}.weight", hf) if one in stored), None)
        whole = f"blk.{decoder.num_layers}.{ours}.weight"
        if name is not None and shapes.keys() >= set(held_by(whole, experts)):
            names[name] = whole
    # Each is there once: apart, or in a tensor of all experts.
    held = sorted(one for ours in names.values() for one in held_by(ours, experts))
    return names if held == sorted(shapes) else {}


def _expected(folder: HFFolder, family: Family, decoder: Decoder) -> Shapes:
    """Return the shapes of all tensors that are read, under GGUF's names."""
    shapes = expected_shapes(decoder)
    if family.ahead is not None and _found_ahead(folder, family, decoder):
        shapes |= ahead_shapes(decoder, family.ahead(decoder))
    return shapes


def _prefix(folder: HFFolder, family: Family) -> str:
    """Return what precedes the names of the text model's tensors."""
    names = (f"{one}{_embedding(family)}.weight" for one in PREFIXES)
    return next((one for one, name in zip(PREFIXES, names, strict=True) if name in folder.weights.tensors), PREFIXES[0])


def _embedding(family: Family) -> str:
    """Return what transformers calls the embedding."""
    return next(hf for hf, ours in family.top_names.items() if ours == "token_embd")


def _has_own_head(folder: HFFolder, family: Family) -> bool:
    """Return whether a head is stored that is not the embedding; some files hold a tied head a second time."""
    stored = folder.weights.tensors
    embedding = stored.get(f"{_prefix(folder, family)}{_embedding(family)}.weight")
    heads = [stored[name] for name in HEADS if name in stored]
    return embedding is not None and any(not _is_equal(folder, embedding, head) for head in heads)


def _is_equal(folder: HFFolder, one: StoredTensor, other: StoredTensor) -> bool:
    """Return whether two tensors have the same type, shape and bytes."""
    if (one.dtype, one.shape, one.nbytes) != (other.dtype, other.shape, other.nbytes):
        return False
    paths = folder.weights.paths
    return is_same_data((paths[one.file], one.offset), (paths[other.file], other.offset), one.nbytes)


def is_same_data(one: tuple[Path, int], other: tuple[Path, int], nbytes: int) -> bool:
    """Return whether files hold the same bytes; each is given with the offset where they begin."""
    try:
        with one[0].open("rb") as first, other[0].open("rb") as second:
            first.seek(one[1])
            second.seek(other[1])
            return all(
                first.read(min(_CHUNK, nbytes - at)) == second.read(min(_CHUNK, nbytes - at))
                for at in range(0, nbytes, _CHUNK)
            )
    except OSError as error:
        raise StorageError(
            f"{one[0].parent.name} cannot be read.", f"{error.strerror}.", "Check its permissions."
        ) from error


def _names(folder: HFFolder, family: Family, decoder: Decoder) -> tuple[dict[str, str], str]:
    """Return transformers' name of every tensor that there may be -> GGUF's; and what precedes them."""
    prefix = _prefix(folder, family)
    names = dict.fromkeys(HEADS, "output.weight")
    modules = {f"{prefix}{hf}": ours for hf, ours in family.top_names.items()}
    for number, layer in enumerate(decoder.layers):
        experts = 0 if layer.experts is None else layer.experts.count
        for hf, ours in _expanded(family.layer_names, experts):
            modules[f"{prefix}layers.{number}.{hf}"] = f"blk.{number}.{name_in_layer(ours, layer)}"
    for hf, ours in modules.items():
        if ours.endswith((".bias", ".scale")):
            names[hf] = ours
        else:
            names |= {f"{hf}.weight": f"{ours}.weight", f"{hf}.bias": f"{ours}.bias", hf: f"{ours}.weight"}
    return names | _found_ahead(folder, family, decoder), prefix


def _stacked(folder: HFFolder, family: Family, decoder: Decoder, prefix: str) -> tuple[dict[str, TensorInfo], set[str]]:
    """Return the tensors of experts that lie in tensors of whole layers, and the names of these."""
    from edge_rt.export.sources.stacked import stacked_experts

    found: dict[str, TensorInfo] = {}
    used: set[str] = set()
    for number, layer in enumerate(decoder.layers):
        if layer.experts is not None:
            module = f"{prefix}layers.{number}.{family.stacked_experts}."
            tensors, names = stacked_experts(
                folder.weights.tensors, module, f"blk.{number}.", decoder.hidden_size, layer.experts
            )
            found |= tensors
            used |= names
    return found, used


def _expanded(names: Mapping[str, str], experts: int) -> Iterator[tuple[str, str]]:
    """Yield names of modules within a layer, with those of every expert."""
    for hf, ours in names.items():
        numbers = range(experts) if "*" in hf else (0,)
        yield from ((hf.replace("*", str(number)), ours.replace("*", str(number))) for number in numbers)


def _renamed(folder: HFFolder, family: Family, decoder: Decoder) -> dict[str, TensorInfo]:
    names, prefix = _names(folder, family, decoder)
    stored = folder.weights.tensors
    # str.startswith of no beginnings is false.
    ignored = {name for name in stored if name.endswith(_IGNORED) or name.startswith(family.ignored_tensors)}
    unread = unread_tensors(decoder)
    ignored |= {hf for hf, ours in names.items() if ours in unread}
    if prefix != PREFIXES[0]:
        # Of a model that also sees or hears, the text model is read.
        ignored |= {name for name in stored if not name.startswith(prefix) and name not in HEADS}
    if decoder.is_tied:
        # A head that is stored is the embedding once more.
        ignored |= set(HEADS)
    ignored -= set(_found_ahead(folder, family, decoder))
    expected = _expected(folder, family, decoder)
    packed: Mapping[str, TensorInfo] = {}
    if (settings := read_packed_settings(folder.path.name, folder.config)) is not None:
        from edge_rt.export.decoder.packed import packed_tensors

        weights = {hf: ours for hf, ours in names.items() if hf.endswith("weight")}
        matrices = {hf: ours for hf, ours in weights.items() if len(expected.get(ours, ())) == 2}
        packed, parts = packed_tensors(folder, matrices, settings)
        ignored |= parts
    if family.stacked_experts:
        stacked, parts = _stacked(folder, family, decoder, prefix)
        packed, ignored = {**packed, **stacked}, ignored | parts
    wanted = {hf for hf, ours in names.items() if ours in expected or is_fused(ours)}
    surplus = [name for name in stored if name not in wanted and name not in ignored]
    layer = re.compile(rf"{re.escape(prefix)}layers\.(\d+)\.")
    if surplus and all((at := layer.match(name)) and int(at[1]) >= decoder.num_layers for name in surplus):
        require_no_surplus(folder.path.name, surplus, _CHECK_CONFIG)
    require_no_surplus(folder.path.name, surplus)
    # Packed matrices have biases of zeros, which count as parts of them; some models want one.
    vectors = {hf for hf, ours in names.items() if len(expected.get(ours, ())) == 1}
    tensors = {
        ours: _flat(float_tensor(folder.path.name, ours, stored[hf]), hf in vectors)
        for hf, ours in names.items()
        if hf in stored and (hf not in ignored or hf in vectors)
    }
    return {**tensors, **packed}


def _flat(tensor: TensorInfo, is_vector: bool) -> TensorInfo:
    """Return a tensor, a matrix of one row as a vector where there must be one."""
    return replace(tensor, shape=tensor.shape[:1]) if is_vector and tensor.shape[1:] == (1,) else tensor
