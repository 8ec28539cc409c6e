"""``edge-rt inspect``: facts about a package or a checkpoint, without loading it."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from edge_rt.byte_size import counted
from edge_rt.cli.options import flags
from edge_rt.cli.options.groups import ModelFlags, OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.decoder_report import decoder_rows
from edge_rt.cli.render.device_report import placement_facts, placement_rows
from edge_rt.cli.render.drafter_report import drafter_facts, drafter_rows, found_facts
from edge_rt.cli.render.stats import facts_lines
from edge_rt.cli.render.traced_report import traced_rows
from edge_rt.cli.render.weights_report import weights_rows
from edge_rt.device_names import parse_device
from edge_rt.errors import ConfigError, InputError, ModelNotFound

if TYPE_CHECKING:
    from edge_rt.package.decoder import Decoder
    from edge_rt.package.manifest import Manifest
    from edge_rt.package.reader import Package
    from edge_rt.package.weights_info import WeightsInfo

SHOWN_TEMPLATE_LINES = 12
_APART = ("chat_template", "placement", "weights", "decoder", "not_described", "traced", "drafters")


@dataclass(frozen=True)
class InspectFlags:
    """Whether hashes are checked."""

    verify: Annotated[bool, flags.VERIFY] = False


def inspect(
    wanted: InspectFlags,
    load: Annotated[ModelFlags, only("named", "model", "device")],
    output: OutputFlags,
    places: Annotated[PlaceFlags, only("store", "config")],
) -> int:
    """Show the facts of a package, a checkpoint or a trained drafter: sizes, quantisation, licence, template.

    With --device cuda or webgpu also which nodes of a package's graph run there.
    """
    from edge_rt.memory.device import refuse_preset
    from edge_rt.package.drafter_reader import is_drafter
    from edge_rt.store import resolve

    terminal = output.terminal()
    refuse_preset(load.device)
    is_placed = parse_device(load.device).is_gpu
    reference = load.reference
    if is_drafter(path := Path(reference).expanduser()):
        _show_drafter(terminal, path, verify=wanted.verify, is_json=output.json)
        return 0
    resolved = resolve(reference, places.open_store())
    if resolved.path is None:
        raise ModelNotFound(
            f"{reference} is not on this machine.", f"edge-rt {resolved.description}.", f"Run: edge-rt pull {reference}"
        )
    weights: WeightsInfo | None = None
    decoder: Decoder | None = None
    if resolved.kind == "package":
        facts, weights, decoder = _package_facts(resolved.path, verify=wanted.verify)
        if is_placed:
            facts["placement"] = placement_facts(resolved.path, load.device)
    elif wanted.verify:
        raise ConfigError("--verify needs a package.", f"{resolved.path} is a checkpoint.", "Export it first.")
    elif resolved.kind == "folder":
        facts, decoder = folder_facts(resolved.path)
    else:
        facts, decoder = gguf_facts(resolved.path)
    if output.json:
        terminal.document(facts)
    else:
        _print(terminal, facts, weights, decoder, whole_template=output.verbose)
    return 0


def _package_facts(path: Path, *, verify: bool) -> tuple[dict[str, Any], WeightsInfo | None, Decoder | None]:
    """Return the facts as a JSON object, those of weights that were quantised, and the description of the model."""
    from edge_rt.package.drafter_search import find_drafters
    from edge_rt.package.reader import open_package
    from edge_rt.runtime.config import GenerationConfig

    package = open_package(path)
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
        "graph_version": manifest.graph_version,
        "producer": manifest.producer,
        "license": manifest.license,
        "op_profile": manifest.op_profile,
        "weight_layout": manifest.weight_layout,
        "activations": manifest.activations,
        "quantisation": dict(manifest.quantisation),
        "weights": None if manifest.weights is None else dataclasses.asdict(manifest.weights),
        "kv_formats": list(manifest.kv_formats),
        "key_calibration": _calibration(manifest),
        "sampling": dataclasses.asdict(GenerationConfig().sampling(manifest.sampling)),
        "recommended_sampling": None if manifest.sampling is None else manifest.sampling.given,
        "exits": list(manifest.exits),
        "model": dataclasses.asdict(manifest.model),
        "decoder": None if manifest.decoder is None else dataclasses.asdict(manifest.decoder),
        "traced": None if manifest.traced is None else dataclasses.asdict(manifest.traced),
        "tokenizer": dataclasses.asdict(manifest.tokenizer),
        "source": dataclasses.asdict(manifest.source),
        "files": {name: info.size for name, info in manifest.files.items()},
        "drafters": [found_facts(found) for found in find_drafters(package)],
        "chat_template": _template(package),
    }
    return facts, manifest.weights, manifest.decoder


def _show_drafter(terminal: Terminal, path: Path, *, verify: bool, is_json: bool) -> None:
    from edge_rt.package.drafter_reader import open_drafter

    drafter = open_drafter(path)
    if verify:
        drafter.verify()
    facts = {"kind": "drafter", "verified": verify, **drafter_facts(drafter)}
    if is_json:
        terminal.document(facts)
        return
    verified = "yes" if verify else "not checked (--verify)"
    terminal.table([("name", facts["name"]), ("verified", verified), *drafter_rows(facts)])


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


def gguf_facts(path: Path) -> tuple[dict[str, Any], Decoder | None]:
    """Return the facts in the header of a GGUF file as a JSON object, and the description of its model if there is one.

    Raises:
        InvalidModelFile: the file is malformed.
    """
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


def folder_facts(path: Path) -> tuple[dict[str, Any], Decoder | None]:
    """Return the facts of a folder with safetensors as a JSON object, and the description of its model if there is one.

    Raises:
        InvalidModelFile, ModelNotFound, UnsupportedModel, StorageError: files are malformed, missing or unreadable.
    """
    from edge_rt.export.families.folder import describe_folder
    from edge_rt.export.sources.hf_folder import read_hf_folder
    from edge_rt.export.sources.hf_templates import chat_templates
    from edge_rt.export.sources.model_card import read_license

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


def _print(
    terminal: Terminal,
    facts: dict[str, Any],
    weights: WeightsInfo | None,
    decoder: Decoder | None,
    *,
    whole_template: bool,
) -> None:
    from edge_rt.byte_size import human_bytes

    template = facts["chat_template"]
    sections = {name: facts[name] for name in ("model", "metadata") if name in facts}
    sizes = {name: facts[name] for name in ("files", "bytes_by_type") if name in facts}
    flat = {name: value for name, value in facts.items() if name not in {*sections, *sizes, *_APART}}
    if "source" in flat:
        source = dict(flat["source"])
        adapters = {f"adapter {number}": one for number, one in enumerate(source.pop("adapters"), 1)}
        flat |= {"source": source, **adapters}
    flat["size"] = human_bytes(flat.pop("size_bytes"))
    if "verified" in flat:
        flat["verified"] = "yes" if flat["verified"] else "not checked (--verify)"
    if (advised := flat.pop("recommended_sampling", None)) is not None:
        flat["sampling"] = {
            name: f"{value} (the model's)" if name in advised else value for name, value in flat["sampling"].items()
        }
    for heading, parts in sizes.items():
        flat[heading] = {part: human_bytes(size) for part, size in parts.items()}
    terminal.table(facts_lines(flat))
    if weights is not None:
        terminal.line("\nweights")
        terminal.table(("", *row) for row in weights_rows(weights))
    if decoder is not None:
        terminal.line("\ndecoder")
        terminal.table(("", *row) for row in decoder_rows(decoder))
    elif reason := facts.get("not_described"):
        terminal.line(f"\ndecoder: no description. {reason}")
    if facts.get("traced") is not None:
        terminal.line("\ntraced graph")
        terminal.table(("", *row) for row in traced_rows(facts["traced"]))
    if "placement" in facts:
        terminal.line("\nplacement")
        terminal.table(("", *row) for row in placement_rows(facts["placement"]))
    for drafter in facts.get("drafters", ()):
        terminal.line(f"\ndrafter {drafter['name']}")
        terminal.table(("", *row) for row in drafter_rows(drafter))
    for name, section in sections.items():
        terminal.line(f"\n{name}")
        terminal.table(("", *row) for row in facts_lines(section))
    terminal.line("\nchat template")
    lines = (template or "none").splitlines()
    shown = lines if whole_template else lines[:SHOWN_TEMPLATE_LINES]
    for line in shown:
        terminal.line(f"  {line}")
    if len(lines) > len(shown):
        terminal.note(f"  ... {counted(len(lines) - len(shown), 'more line')}, shown with -v", "dim")
