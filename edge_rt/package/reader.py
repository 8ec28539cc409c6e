"""Opens a package: reads and checks its manifest, its files, and which files its graphs read."""

from __future__ import annotations

import functools
import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_rt.errors import (
    ConfigError,
    InvalidPackage,
    ModelNotFound,
    StorageError,
    UnsupportedModel,
    VersionMismatch,
    as_json,
)
from edge_rt.package.decoder import Decoder
from edge_rt.package.documents import Refusal, build, check_files, parse_document, read_bounded, verify_files
from edge_rt.package.exits import require_exits
from edge_rt.package.graph_check import StoredTensor, check_graph
from edge_rt.package.manifest import (
    ACTIVATIONS,
    FORMAT_NAME,
    FORMAT_VERSION,
    KV_FORMATS,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    OP_PROFILES,
    WEIGHTS_FILE,
    Manifest,
)
from edge_rt.package.sampling import fault
from edge_rt.package.weights_info import KEEP, WEIGHTS
from edge_rt.system.option_names import known_options


@dataclass(frozen=True)
class Package:
    """An opened package: its folder, its manifest and its identity.

    Attributes:
        path: absolute path of the folder.
        manifest: the checked manifest.
        id: SHA-256 of ``manifest.json``. As that lists the hash of every file, it identifies the whole content.
        tensors: graph -> name -> constant of it in ``weights.bin``; empty for traced graphs.
    """

    path: Path
    manifest: Manifest
    id: str
    tensors: Mapping[str, Mapping[str, StoredTensor]] = field(repr=False, compare=False)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files, the manifest included."""
        return sum(f.size for f in self.manifest.files.values()) + (self.path / MANIFEST_FILE).stat().st_size

    def file(self, name: str) -> Path:
        """Return the path of a file that the manifest lists."""
        return self.path / name

    def verify(self) -> None:
        """Read every file and compare its hash.

        Raises:
            InvalidPackage: a file differs from the manifest.
            StorageError: a file cannot be read.
        """
        verify_files(self.path, self.manifest.files, _refusal(self.path))


def stored_name(path: Path) -> str:
    """Return a file's name in a form that a manifest can hold: parts that are not valid text become U+FFFD."""
    return path.name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def absolute_path(path: Path) -> Path:
    """Return the path with ``~`` expanded, absolute."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(f"The path {str(path)[:200]!r} cannot be resolved.", f"{error}", "Write it out.") from error


def is_package(path: Path) -> bool:
    """Return whether the folder holds a manifest (nothing else is checked); False if it cannot be read."""
    try:
        return (path / MANIFEST_FILE).is_file()
    except OSError:
        return False


@known_options()
def open_package(path: str | Path) -> Package:
    """Read and check the manifest, the presence and size of every file, and that the graph reads no other file.

    Hashes are checked by ``Package.verify``.

    Raises:
        ModelNotFound: there is no such folder.
        InvalidPackage: the manifest is missing, malformed or disagrees with the folder.
        VersionMismatch: the package was written in another version of the format.
        StorageError: the folder or a file in it cannot be read.
    """
    path = absolute_path(Path(path))
    try:
        return _open_package(path)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror}.", "Check its permissions.") from error


def _open_package(path: Path) -> Package:
    if not path.exists():
        raise ModelNotFound(
            f"There is no package at {path}.", "", "Check the path, or list models with 'edge-rt list'."
        )
    refuse = _refusal(path)
    data = _read_manifest_bytes(path)
    document = parse_document(data, FORMAT_NAME, refuse, name="manifest", owner="an edge-rt package's")
    _check_version(path, document)
    document.pop("format")
    manifest = build(Manifest, document, "manifest", refuse)
    _check_values(path, manifest)
    _check_files(path, manifest)
    tensors = _check_graphs(path, manifest)
    return Package(path, manifest, hashlib.sha256(data).hexdigest(), tensors)


def _invalid(path: Path, what: str, numbers: str) -> InvalidPackage:
    return InvalidPackage(f"{path}: {what}", numbers, "Export or pull the model again.")


def _refusal(path: Path) -> Refusal:
    return functools.partial(_invalid, path)


def _read_manifest_bytes(path: Path) -> bytes:
    manifest_path = path / MANIFEST_FILE
    if manifest_path.is_symlink():
        raise _invalid(path, f"{MANIFEST_FILE} is a link.", "A package consists of files of its own.")
    if not manifest_path.is_file():
        raise _invalid(path, "this is not a package.", f"It holds no {MANIFEST_FILE}.")
    return read_bounded(manifest_path, MAX_MANIFEST_BYTES, _refusal(path), name="manifest")


def _check_version(path: Path, document: Mapping[str, Any]) -> None:
    version = document.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise _invalid(
            path, "the manifest's 'format_version' is missing or not a number.", f"Found {as_json(version)}."
        )
    if version != FORMAT_VERSION:
        raise VersionMismatch(
            f"{path}: the package has format_version {version!s:.20}, this edge-rt reads {FORMAT_VERSION}.",
            f"It was written by {document.get('producer', 'an unknown program')!s:.80}.",
            f"Make it again: {_export_command(path, document)}",
        )


def _export_command(path: Path, document: Mapping[str, Any]) -> str:
    """Return the command that makes a package again, with the options that its manifest of another version names."""
    source = _object(document, "source")
    name = source.get("name")
    command = ["edge-rt", "export", "-m", name[:200] if isinstance(name, str) and name else "SOURCE"]
    if document.get("op_profile") in OP_PROFILES and document.get("op_profile") != "traced":
        command += ["--profile", str(document["op_profile"])]
    for flag, value in _stated_options(document).items():
        command += [f"--{flag}", str(value)]
    for adapter in _objects(source, "adapters"):
        command += ["--adapter", f"{adapter.get('name')!s:.200}:{adapter.get('scale')!s:.20}"]
    return shlex.join([*command, "--out", str(path), "--force"])


def stated_options(path: Path) -> dict[str, Any]:
    """Return what a manifest of any version says of the options that its package was exported with.

    Returns:
        ``weights``, or ``size`` in bytes; and where they are not the usual ones ``activations``, ``kv-type``,
        ``exits``, ``adapters`` and ``via``.
    """
    document = parse_document(
        _read_manifest_bytes(path), FORMAT_NAME, _refusal(path), name="manifest", owner="an edge-rt package's"
    )
    adapters = _objects(_object(document, "source"), "adapters")
    return {**_stated_options(document), **({"adapters": len(adapters)} if adapters else {})}


def _stated_options(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a command can be given as they are."""
    if document.get("op_profile") == "traced":
        return {"via": "transformers"}
    stated: dict[str, Any] = {}
    weights = _object(document, "weights")
    choice, size = weights.get("choice", KEEP), weights.get("size")
    if type(size) is int and size > 0:
        stated["size"] = size
    elif choice in WEIGHTS:
        stated["weights"] = choice
    if document.get("activations") == "float":
        stated["activations"] = "float"
    formats = document.get("kv_formats")
    first = formats[0] if isinstance(formats, list) and formats else None
    usual = KV_FORMATS.get(str(document.get("op_profile")), ())
    if first in usual[1:] and document.get("kv_losses") is None:
        stated["kv-type"] = first
    for name, choices in (("activations", ACTIVATIONS), ("kv-type", usual)):
        if (choice := _object(document, "chosen").get(name.replace("-", "_"))) in choices:
            stated[name] = choice
    if ends := [segment.get("end_layer") for segment in _objects(document, "segments")[:-1]]:
        stated["exits"] = ",".join(str(end) for end in ends if type(end) is int)
    return stated


def _object(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _objects(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = document.get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _check_values(path: Path, manifest: Manifest) -> None:
    """Check the conditions that the runtime relies on and that types alone do not guarantee."""
    _check_model(path, manifest)
    if manifest.num_parameters < 1:
        numbers = f"Found {manifest.num_parameters}, wanted a number above 0."
        raise _invalid(path, "'manifest.num_parameters' is out of range.", numbers)
    if (calibration := manifest.key_calibration) is not None:
        if calibration.tokens < 1:
            numbers = f"Found {calibration.tokens}, wanted a number above 0."
            raise _invalid(path, "'manifest.key_calibration.tokens' is out of range.", numbers)
        if "int4" not in KV_FORMATS.get(manifest.op_profile, ("int4",)):
            numbers = f"The op profile {manifest.op_profile} has no 4-bit keys."
            raise _invalid(path, "'manifest.key_calibration' does not apply here.", numbers)
    if manifest.rounding is not None:
        if manifest.op_profile != "native" or manifest.activations != "int8":
            numbers = (
                f"The op profile is {manifest.op_profile!s:.80}, the activations are {manifest.activations!s:.80}."
            )
            raise _invalid(path, "'manifest.rounding' does not apply here.", numbers)
        for where, found, needed in manifest.rounding.faults(manifest.model):
            raise _invalid(path, f"'manifest.rounding.{where}' is out of range.", f"Found {found}, wanted {needed}.")
    for name, value in ({} if manifest.sampling is None else manifest.sampling.given).items():
        if (wanted := fault(name, value)) is not None:
            raise _invalid(
                path, f"'manifest.sampling.{name}' is out of range.", f"Found {as_json(value)}, wanted {wanted}."
            )
    measured = {"weights": manifest.weights, "kv_losses": manifest.kv_losses, "expert_hits": manifest.expert_hits}
    for where, info in measured.items():
        for name, value, wanted in () if info is None else info.faults():
            raise _invalid(path, f"'manifest.{where}.{name}' is out of range.", f"Found {value}, wanted {wanted}.")
    if manifest.pooling is not None:
        if manifest.op_profile != "native":
            numbers = f"The op profile is {manifest.op_profile!s:.80}."
            raise _invalid(path, "'manifest.pooling' does not apply here.", numbers)
        for name, value, wanted in manifest.pooling.faults(manifest.model):
            raise _invalid(path, f"'manifest.pooling.{name}' is out of range.", f"Found {value}, wanted {wanted}.")
    if manifest.ahead is not None:
        if manifest.op_profile != "native" or manifest.decoder is None or len(manifest.segments) > 1:
            numbers = f"The op profile is {manifest.op_profile!s:.80}, with {len(manifest.segments)} segments."
            raise _invalid(path, "'manifest.ahead' does not apply here.", numbers)
        for name, value, wanted in manifest.ahead.faults(manifest.decoder):
            raise _invalid(path, f"'manifest.ahead.{name}' is out of range.", f"Found {value}, wanted {wanted}.")
    if (manifest.traced is not None) != (manifest.op_profile == "traced"):
        numbers = f"The op profile is {manifest.op_profile}."
        raise _invalid(path, "'manifest.traced' does not fit 'manifest.op_profile'.", numbers)
    for name, value in () if manifest.traced is None else manifest.traced.faults():
        raise _invalid(path, f"'manifest.traced.{name}' is out of range.", f"Found {value}, wanted 0 or more.")
    for name, supported, found in (
        ("op_profile", OP_PROFILES, (manifest.op_profile,)),
        ("kv_formats", KV_FORMATS.get(manifest.op_profile, ()), manifest.kv_formats[:1]),
    ):
        if not found or found[0] not in supported:
            raise UnsupportedModel(
                f"{path}: this edge-rt cannot run the package's '{name}'.",
                f"Found {', '.join(found) or 'none'!s:.80}, supported: {', '.join(supported)}.",
                "Export the model again with this version, or install the version that wrote it.",
            )
    _check_segments(path, manifest)


def _check_segments(path: Path, manifest: Manifest) -> None:
    segments, layers = manifest.segments, manifest.model.num_layers
    covered = [(segment.first_layer, segment.end_layer) for segment in segments]
    ends = [end for _, end in covered]
    follow_each_other = covered == list(zip([0, *ends[:-1]], ends, strict=True)) if covered else False
    if not follow_each_other or ends[-1] != layers or any(first >= end for first, end in covered):
        raise _invalid(
            path, f"the segments are not the model's {layers} layers, one behind the other.", f"Found {covered!s:.200}."
        )
    if (manifest.exit_head is not None) != (len(segments) > 1):
        raise _invalid(path, "'manifest.exit_head' does not fit the segments.", f"There are {len(segments)}.")
    if len({name.lower() for name in manifest.graphs}) < len(manifest.graphs):
        raise _invalid(path, "two segments have one graph.", f"Graphs: {', '.join(manifest.graphs)!s:.200}.")
    try:
        require_exits(manifest.exits, layers, manifest.op_profile)
    except ConfigError as error:
        raise _invalid(path, "the segments are cut where this version cannot.", error.numbers) from error


def _check_model(path: Path, manifest: Manifest) -> None:
    if (manifest.decoder is None) == (manifest.dimensions is None):
        raise _invalid(path, "the manifest must have either 'decoder' or 'dimensions'.", "It has both, or neither.")
    if manifest.decoder is None and manifest.op_profile != "traced":
        numbers = f"The op profile is {manifest.op_profile!s:.80}."
        raise _invalid(path, "the manifest has no 'decoder', which only traced graphs do without.", numbers)
    try:
        manifest.model.check()
    except ValueError as error:
        name = "dimensions" if manifest.decoder is None else "decoder"
        raise _invalid(path, f"'manifest.{name}' contradicts itself, or is out of range.", f"{error}.") from error


def _check_files(path: Path, manifest: Manifest) -> None:
    named = [manifest.tokenizer.file, *manifest.graphs, *manifest.more_graphs, WEIGHTS_FILE]
    more = (manifest.chat_template, manifest.tool_template)
    named += [name for name in more if name is not None]
    unlisted = sorted(set(named) - set(manifest.files))
    if unlisted:
        raise _invalid(path, "the manifest names files it does not list.", f"Not under 'files': {unlisted}.")
    check_files(path, manifest.files, _refusal(path))


def _check_graphs(path: Path, manifest: Manifest) -> dict[str, dict[str, StoredTensor]]:
    tensors = {}
    for graph in (*manifest.graphs, *manifest.more_graphs):
        # Locations are relative to the graph's folder, and the suffix decides how ONNX Runtime reads the file.
        if "/" in graph or not graph.endswith(".onnx"):
            raise _invalid(path, "a graph must be an .onnx file at the top of the package.", f"Found {graph!r:.100}.")
        size, is_own = manifest.files[WEIGHTS_FILE].size, manifest.op_profile != "traced"
        tensors[graph] = check_graph(path / graph, WEIGHTS_FILE, size, is_own=is_own)
    if manifest.decoder is not None and manifest.op_profile != "traced":
        _check_convolutions(path, manifest.decoder, tensors)
    return tensors


def _check_convolutions(path: Path, decoder: Decoder, tensors: Mapping[str, Mapping[str, StoredTensor]]) -> None:
    """Compare the sizes of convolutions with the stored ones: how many rows are kept for them follows from these."""
    for layer, shape in decoder.convolutions.items():
        name = f"layer{layer}.conv"
        found = {stored[name].shape for stored in tensors.values() if name in stored}
        if found != {shape}:
            shapes = " and ".join(str(list(one)) for one in sorted(found)) or "nothing"
            raise _invalid(
                path,
                f"the convolution of layer {layer} is not as large as 'manifest.decoder' says.",
                f"The graphs read {shapes:.80} of {WEIGHTS_FILE} as {name!r}, not {list(shape)}.",
            )
