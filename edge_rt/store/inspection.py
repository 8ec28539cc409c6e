"""Facts about a package, a checkpoint or a trained drafter as a JSON object, read without loading it."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_rt.errors import ConfigError, InputError

if TYPE_CHECKING:
    from edge_rt.package.ahead import AheadInfo
    from edge_rt.package.decoder import Decoder
    from edge_rt.package.drafter import TrainedDrafter
    from edge_rt.package.drafter_search import FoundDrafter
    from edge_rt.package.manifest import KvLosses, Manifest
    from edge_rt.package.reader import Package
    from edge_rt.package.weights_info import WeightsInfo
    from edge_rt.store.layout import Store


@dataclass(frozen=True)
class Inspected:
    """What was found.

    Attributes:
        facts: the facts as a JSON object; ``kind`` is ``"package"``, ``"gguf"``, ``"safetensors"`` or ``"drafter"``.
        weights: what is known of a package's weights that were quantised; None: nothing.
        decoder: what the model computes; None without a description.
        kv_losses: what caches of a package lose; None: not measured.
        ahead: a package's block that predicts further ahead; None without one.
    """

    facts: dict[str, Any]
    weights: WeightsInfo | None = None
    decoder: Decoder | None = None
    kv_losses: KvLosses | None = None
    ahead: AheadInfo | None = None


def inspect(reference: str | Path, store: Store, *, verify: bool = False) -> Inspected:
    """Read the facts of a package, a checkpoint or a trained drafter."""
    from edge_rt.package.drafter_reader import is_drafter, open_drafter
    from edge_rt.package.reader import absolute_path
    from edge_rt.store.resolve import resolve

    if is_drafter(path := absolute_path(Path(reference))):
        drafter = open_drafter(path)
        if verify:
            drafter.verify()
        return Inspected({"kind": "drafter", "verified": verify, **_drafter_facts(drafter)})
    resolved = resolve(reference, store)
    if resolved.path is None:
        raise resolved.no_package(reference)
    if resolved.kind == "package":
        return _of_package(resolved.open(store), verify=verify)
    if verify:
        raise ConfigError(
            "Only packages have hashes to verify.", f"{resolved.path} is a checkpoint.", "Export it first."
        )
    facts, decoder = (_folder_facts if resolved.kind == "folder" else _gguf_facts)(resolved.path)
    return Inspected(facts, decoder=decoder)


def _of_package(package: Package, *, verify: bool) -> Inspected:
    from edge_rt.package.decoder import sizes
    from edge_rt.package.drafter_search import find_drafters
    from edge_rt.package.expert_sizes import expert_sizes
    from edge_rt.runtime.config import GenerationConfig

    if verify:
        package.verify()
    manifest = package.manifest
    facts = {
        "kind": "package",
        "path": str(package.path),
        "package_id": package.id,
        "size_bytes": package.size_bytes,
        "verified": verify,
        "format_version": manifest.format_version,
        "producer": manifest.producer,
        "license": manifest.license,
        "op_profile": manifest.op_profile,
        "weight_layout": manifest.weight_layout,
        "activations": manifest.activations_choice,
        "rounding": None if manifest.rounding is None else dataclasses.asdict(manifest.rounding),
        "quantisation": dict(manifest.quantisation),
        "weights": None if manifest.weights is None else dataclasses.asdict(manifest.weights),
        "kv_formats": list(manifest.kv_formats),
        "kv_losses": None if manifest.kv_losses is None else dataclasses.asdict(manifest.kv_losses),
        "key_calibration": _calibration(manifest),
        "sampling": dataclasses.asdict(GenerationConfig().sampling(manifest.sampling)),
        "recommended_sampling": None if manifest.sampling is None else manifest.sampling.given,
        "exits": list(manifest.exits),
        "model": {**sizes(manifest.model), "num_parameters": manifest.num_parameters},
        "decoder": None if manifest.decoder is None else dataclasses.asdict(manifest.decoder),
        "traced": None if manifest.traced is None else dataclasses.asdict(manifest.traced),
        "tokenizer": dataclasses.asdict(manifest.tokenizer),
        "source": dataclasses.asdict(manifest.source),
        "files": {name: info.size for name, info in manifest.files.items()},
        "drafters": [_found_facts(found) for found in find_drafters(package)],
        "chat_template": _template(package),
    }
    if (experts := expert_sizes(package)) is not None:
        facts["experts"] = {
            "stored_bytes": experts.stored_bytes,
            "least_bytes": experts.least_bytes,
            "bytes_per_token": experts.row_bytes,
        }
    if manifest.ahead is not None:
        facts["ahead"] = dataclasses.asdict(manifest.ahead)
    return Inspected(facts, manifest.weights, manifest.decoder, manifest.kv_losses, manifest.ahead)


def _drafter_facts(drafter: TrainedDrafter) -> dict[str, Any]:
    """Return what ``drafter.json`` says as a JSON object, without the places of tensors and the hashes of files."""
    info = drafter.info
    head = dataclasses.asdict(info.head)
    del head["tensors"]
    return {
        "name": info.name,
        "path": str(drafter.path),
        "drafter_id": drafter.id,
        "size_bytes": drafter.size_bytes,
        "format_version": info.format_version,
        "producer": info.producer,
        "license": info.license,
        "drafter_kind": info.kind,
        "target": dataclasses.asdict(info.target),
        "head": head,
        "training": dataclasses.asdict(info.training),
        "acceptance": dataclasses.asdict(info.acceptance),
        "exits": [dataclasses.asdict(one) for one in info.exits],
        "files": {name: file.size for name, file in info.files.items()},
    }


def _found_facts(found: FoundDrafter) -> dict[str, Any]:
    """Return a drafter that was found for a package as a JSON object, with why it cannot be used, or null."""
    facts = (
        {"name": found.path.name, "path": str(found.path)} if found.drafter is None else _drafter_facts(found.drafter)
    )
    return {**facts, "origin": found.origin, "reason": found.reason}


def _calibration(manifest: Manifest) -> dict[str, Any] | None:
    found = manifest.key_calibration
    return None if found is None else dataclasses.asdict(found)


def _template(package: Package) -> str | None:
    name = package.manifest.chat_template
    return None if name is None else package.file(name).read_text(encoding="utf-8", errors="replace")


def _described(describe: Callable[[], Decoder]) -> tuple[dict[str, Any], Decoder | None]:
    """Return the facts about what a checkpoint computes, and its description.

    A model that edge-rt cannot run has no description; why is a fact then.
    """
    try:
        decoder = describe()
    except InputError as error:
        return {"decoder": None, "not_described": error.what}, None
    return {"decoder": dataclasses.asdict(decoder), "not_described": None}, decoder


def _gguf_facts(path: Path) -> tuple[dict[str, Any], Decoder | None]:
    """Return the facts in the header of a GGUF file as a JSON object, and its model's description if there is one."""
    from edge_rt.export.families.header import read_header_decoder
    from edge_rt.export.sources.gguf_split import read_gguf

    header = read_gguf(path)
    described, decoder = _described(lambda: read_header_decoder(header)[1])
    sizes: collections.Counter[str] = collections.Counter()
    for tensor in header.tensors.values():
        sizes[tensor.type_name] += tensor.nbytes
    values = {key: _json_value(value) for key, value in header.values.items()}
    template = values.pop("tokenizer.chat_template", None)
    facts = {
        "kind": "gguf",
        "path": str(path),
        "size_bytes": header.file_size,
        "architecture": values.get("general.architecture"),
        "name": values.get("general.name"),
        "license": values.get("general.license"),
        "tensors": len(header.tensors),
        "parameters": sum(tensor.elements for tensor in header.tensors.values()),
        "bytes_by_type": dict(sizes),
        **described,
        "metadata": {key: value for key, value in values.items() if value is not None},
        "chat_template": template,
    }
    return facts, decoder


def _folder_facts(path: Path) -> tuple[dict[str, Any], Decoder | None]:
    """Return the facts of a folder with safetensors, and the description of its model if there is one."""
    from edge_rt.export.families.folder import describe_folder
    from edge_rt.export.sources.hf_folder import chat_templates, read_hf_folder, read_license

    folder = read_hf_folder(path)
    described, decoder = _described(lambda: describe_folder(folder)[1])
    tensors = folder.weights.tensors.values()
    sizes: collections.Counter[str] = collections.Counter()
    for tensor in tensors:
        sizes[tensor.dtype] += tensor.nbytes
    values = {key: _json_value(value) for key, value in folder.config.items()}
    facts = {
        "kind": "safetensors",
        "path": str(path),
        "size_bytes": sum(file.stat().st_size for file in folder.weights.paths),
        "architecture": values.get("model_type"),
        "name": path.resolve().name,
        "license": read_license(path),
        "tensors": len(tensors),
        "parameters": sum(math.prod(tensor.shape) for tensor in tensors),
        "bytes_by_type": dict(sizes),
        **described,
        "metadata": {key: value for key, value in values.items() if value is not None},
        "chat_template": chat_templates(path).get("default"),
    }
    return facts, decoder


def _json_value(value: object) -> str | int | float | None:
    """Return a metadata value for JSON; None for an array, which may have a million items."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float) else None
