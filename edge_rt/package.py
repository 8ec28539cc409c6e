"""THE on-disk format: a folder of data, described byte for byte in ``docs/package-format.md``.

``open_package`` reads and checks one, ``PackageWriter`` creates one so that the destination is
either absent or complete at every moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast, get_args, get_origin, get_type_hints

import psutil

from edge_rt.errors import ConfigError, InvalidPackage, ModelNotFound, StorageError, UnsupportedModel, VersionMismatch
from edge_rt.graph_check import check_graph

FORMAT_NAME: Final = "edge-rt package"
FORMAT_VERSION: Final = 1
"""Layout of the folder and of ``manifest.json``; raised when an older reader would misread a package."""
GRAPH_VERSIONS: Final[Mapping[str, int]] = {"native": 2, "portable": 1}
"""Op profile -> version of the names and meaning of its graphs' inputs and outputs; raised when the runtime has to bind
them differently."""
WINDOW_GRAPH_VERSIONS: Final[Mapping[str, int]] = {"native": 3, "portable": 1}
"""The same of models with a sliding window: a reader that knows of none must not run them as if there were none."""
CALIBRATED_GRAPH_VERSION: Final = 4
"""The same of native graphs, with a window or without, whose attention takes constants for 4-bit keys."""

MANIFEST_FILE: Final = "manifest.json"
WEIGHTS_FILE: Final = "weights.bin"
TOKENIZER_FILE: Final = "tokenizer.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
KV_FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "native": ("f16", "f32", "int8", "k8v4", "int4", "int4x2"),
    "portable": ("f32",),
}
"""Op profile -> cache formats that the runtime of this version can run it with, preferred first."""
WEIGHT_LAYOUTS: Final[Mapping[str, str]] = {"native": "tile16", "portable": "matmulnbits"}
"""Op profile -> name of the layout of its matrices in ``weights.bin``."""
OP_PROFILES: Final = tuple(KV_FORMATS)
"""Operators of a graph: those of ``edge_rt.ops``, or ONNX Runtime's own."""

BUILT_IN_CALIBRATION: Final = "built-in"
"""Name of edge-rt's own calibration text."""

MAX_TOP_TOKENS: Final = 8
"""Most likely tokens that a native graph returns with every row of logits."""

MAX_MANIFEST_BYTES: Final = 16 << 20
_HASH_CHUNK_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class ModelConfig:
    """Numbers of the architecture; sizes count elements, ``context_length`` and ``sliding_window`` count tokens.

    ``sliding_window`` is how many tokens attention sees, the token itself included, in every layer; 0: all of them.
    """

    name: str
    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: str
    tied_embedding: bool
    num_parameters: int
    sliding_window: int = 0

    @property
    def top_tokens(self) -> int:
        """Most likely tokens that a native graph returns with every row of logits."""
        return min(MAX_TOP_TOKENS, self.vocab_size)

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """Sliding window of every layer; 0: none."""
        return (self.sliding_window,) * self.num_layers


@dataclass(frozen=True)
class Segment:
    """One graph and the layers it computes, ``[first_layer, end_layer)``."""

    name: str
    graph: str
    first_layer: int
    end_layer: int


@dataclass(frozen=True)
class TokenizerInfo:
    """File of the tokenizer and the ids the engine has to know."""

    file: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    add_bos: bool


@dataclass(frozen=True)
class SourceInfo:
    """The checkpoint that the package was made from."""

    kind: str
    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class KeyCalibration:
    """The text that the constants of 4-bit keys were computed from.

    Attributes:
        tokens: of the text that were used.
        source: ``BUILT_IN_CALIBRATION``, or the name of a file.
    """

    tokens: int
    source: str


@dataclass(frozen=True)
class FileInfo:
    """Size in bytes and SHA-256 (lower-case hexadecimal) of one file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Contents of ``manifest.json``.

    Attributes:
        format_version: see ``FORMAT_VERSION``.
        graph_version: see ``graph_version``.
        producer: program and version that wrote the package.
        model: numbers of the architecture.
        op_profile: ``"native"`` (edge-rt's operators) or ``"portable"`` (ONNX Runtime's own).
        activations: ``"int8"`` (linear layers quantise their input per block) or ``"float"``.
        quantisation: tensor class -> stored type, for example ``{"embedding": "Q8_0"}``.
        kv_formats: cache formats the graph can be run with, preferred first.
        segments: graphs in the order they run.
        drafters: names of the folders under ``drafters/``.
        tokenizer: file and special ids.
        chat_template: file of the template, or None.
        source: the checkpoint.
        license: licence identifier given by the checkpoint, or None.
        key_calibration: of the constants of 4-bit keys; None for a package without.
        files: every other file of the folder.
    """

    format_version: int
    graph_version: int
    producer: str
    model: ModelConfig
    op_profile: str
    activations: str
    quantisation: Mapping[str, str]
    kv_formats: tuple[str, ...]
    segments: tuple[Segment, ...]
    drafters: tuple[str, ...]
    tokenizer: TokenizerInfo
    chat_template: str | None
    source: SourceInfo
    license: str | None
    key_calibration: KeyCalibration | None = dataclasses.field(default=None, kw_only=True)
    files: Mapping[str, FileInfo]

    @property
    def weight_layout(self) -> str:
        """Name of the layout of the matrices in ``weights.bin``; it follows from the op profile."""
        return WEIGHT_LAYOUTS[self.op_profile]

    def to_bytes(self) -> bytes:
        """Return the one spelling of this manifest: UTF-8 JSON, keys in field order, two spaces, final newline."""
        document: dict[str, Any] = {"format": FORMAT_NAME, **dataclasses.asdict(self)}
        if not self.model.sliding_window:
            # Left out where there is none: such packages are those of versions that knew of no windows.
            del document["model"]["sliding_window"]
        if self.key_calibration is None:
            del document["key_calibration"]
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


@dataclass(frozen=True)
class Package:
    """An opened package: its folder, its manifest and its identity.

    Attributes:
        path: absolute path of the folder.
        manifest: the checked manifest.
        id: SHA-256 of ``manifest.json``; as that lists the hash of every file, it names the whole content.
    """

    path: Path
    manifest: Manifest
    id: str

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
        for name, info in self.manifest.files.items():
            found = sha256_file(self.file(name))
            if found != info.sha256:
                raise InvalidPackage(
                    f"{self.path}: file '{name}' is damaged.",
                    f"Its SHA-256 is {found}, the manifest says {info.sha256}.",
                    "Export or pull the model again.",
                )


def graph_version(op_profile: str, sliding_window: int, *, is_calibrated: bool = False) -> int:
    """Return the version of the graphs of an op profile.

    See ``GRAPH_VERSIONS``, ``WINDOW_GRAPH_VERSIONS`` and ``CALIBRATED_GRAPH_VERSION``.
    """
    if is_calibrated and op_profile == "native":
        return CALIBRATED_GRAPH_VERSION
    return (WINDOW_GRAPH_VERSIONS if sliding_window else GRAPH_VERSIONS)[op_profile]


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file in lower-case hexadecimal.

    Raises:
        StorageError: the file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_HASH_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror or error}.", "Check the path.") from error
    return digest.hexdigest()


def stored_name(path: Path) -> str:
    """Return the name of a file as a manifest can hold it: what of it is no text becomes U+FFFD."""
    return path.name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def absolute_path(path: Path) -> Path:
    """Return the path with ``~`` expanded, absolute.

    Raises:
        ConfigError: ``~name`` names a user that does not exist.
    """
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(f"The path {str(path)[:200]!r} means nothing here.", f"{error}", "Write it out.") from error


def is_package(path: Path) -> bool:
    """Tell whether the folder holds a manifest (nothing else is checked); False where one cannot look."""
    try:
        return (path / MANIFEST_FILE).is_file()
    except OSError:
        return False


def open_package(path: Path) -> Package:
    """Read and check the manifest, the presence and size of every file, and that the graph reads no other file.

    Hashes are ``Package.verify``'s work.

    Raises:
        ModelNotFound: there is no such folder.
        InvalidPackage: the manifest is missing, malformed or disagrees with the folder.
        VersionMismatch: the package was written in another version of the format.
        StorageError: the folder or a file in it cannot be read.
    """
    path = Path(path).absolute()
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
    data = _read_manifest_bytes(path)
    document = _parse_json(path, data)
    _check_versions(path, document)
    document.pop("format")
    manifest: Manifest = _build(Manifest, document, path, "manifest")
    _check_values(path, manifest)
    _check_files(path, manifest)
    _check_graphs(path, manifest)
    return Package(path=path, manifest=manifest, id=hashlib.sha256(data).hexdigest())


def _invalid(path: Path, what: str, numbers: str) -> InvalidPackage:
    return InvalidPackage(f"{path}: {what}", numbers, "Export or pull the model again.")


def _read_manifest_bytes(path: Path) -> bytes:
    manifest_path = path / MANIFEST_FILE
    if not manifest_path.is_file():
        raise _invalid(path, "this is not a package.", f"It holds no {MANIFEST_FILE}.")
    with manifest_path.open("rb") as stream:
        data = stream.read(MAX_MANIFEST_BYTES + 1)
    if len(data) > MAX_MANIFEST_BYTES:
        raise _invalid(path, "the manifest is too large.", f"The limit is {MAX_MANIFEST_BYTES} bytes.")
    return data


def _parse_json(path: Path, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _invalid(path, "the manifest is not JSON.", f"{error}.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
        raise _invalid(path, "the manifest is not an edge-rt package's.", f"'format' must be '{FORMAT_NAME}'.")
    return document


def _check_versions(path: Path, document: Mapping[str, Any]) -> None:
    profile, model = document.get("op_profile"), document.get("model")
    # Any JSON value may stand there; of a profile that is unknown there is no version to compare with.
    has_window = isinstance(model, dict) and bool(model.get("sliding_window"))
    known = isinstance(profile, str) and profile in GRAPH_VERSIONS
    is_calibrated = document.get("key_calibration") is not None
    ours_of_graph = graph_version(str(profile), has_window, is_calibrated=is_calibrated) if known else None
    for field, ours in (("format_version", FORMAT_VERSION), ("graph_version", ours_of_graph)):
        found = document.get(field)
        if not isinstance(found, int) or isinstance(found, bool):
            raise _invalid(path, f"the manifest's '{field}' is missing or no number.", f"Found {found!r}.")
        if ours is not None and found != ours:
            of_profile = "" if ours_of_graph is None else f" --profile {profile}"
            raise VersionMismatch(
                f"{path}: the package has {field} {found}, this edge-rt reads {ours}.",
                f"It was written by {document.get('producer', 'an unknown program')!s:.80}.",
                "Install the version that wrote it, or export the model again: "
                f"edge-rt export -m SOURCE --out {shlex.quote(str(path))}{of_profile} --force",
            )


T = TypeVar("T")


def _build(kind: type[T], value: Any, path: Path, where: str) -> T:
    """Turn JSON into a dataclass; every missing, unknown or mistyped field is an error that names it.

    A field that has a default may be missing.
    """
    if not isinstance(value, dict):
        raise _invalid(path, f"'{where}' must be an object.", f"Found {type(value).__name__}.")
    hints = get_type_hints(kind)
    entries = dataclasses.fields(cast("Any", kind))
    required = {entry.name for entry in entries if entry.default is dataclasses.MISSING}
    unknown = sorted(set(value) - set(hints))
    missing = sorted(required - set(value))
    if unknown or missing:
        raise _invalid(path, f"'{where}' has the wrong fields.", f"Missing: {missing}; unknown: {unknown}.")
    given = {name: hint for name, hint in hints.items() if name in value}
    return kind(**{name: _convert(hint, value[name], path, f"{where}.{name}") for name, hint in given.items()})


def _convert(hint: Any, value: Any, path: Path, where: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value, path, where)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple and isinstance(value, list):
        return tuple(_convert(arguments[0], item, path, f"{where}[{i}]") for i, item in enumerate(value))
    if (
        origin is not None
        and issubclass(origin if isinstance(origin, type) else object, Mapping)
        and isinstance(value, dict)
    ):
        return {key: _convert(arguments[1], item, path, f"{where}.{key}") for key, item in value.items()}
    allowed = arguments if origin is not None and origin is not tuple else (hint,)
    if isinstance(value, dict):
        for option in allowed:
            if dataclasses.is_dataclass(option) and isinstance(option, type):
                return _build(option, value, path, where)
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if any(type(value) is option for option in allowed):
        return value
    raise _invalid(path, f"'{where}' has the wrong type.", f"Expected {hint}, found {type(value).__name__}.")


def _check_values(path: Path, manifest: Manifest) -> None:
    """Check what types alone do not say and the runtime relies on."""
    model = manifest.model
    for name, value in dataclasses.asdict(model).items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        least = "a number above 0"
        if name == "sliding_window":
            number, least = number and value != 0, "0 or more"
        if number and not (math.isfinite(value) and value > 0):
            raise _invalid(path, f"'manifest.model.{name}' is out of range.", f"Found {value}, wanted {least}.")
    if (calibration := manifest.key_calibration) is not None:
        if calibration.tokens < 1:
            numbers = f"Found {calibration.tokens}, wanted a number above 0."
            raise _invalid(path, "'manifest.key_calibration.tokens' is out of range.", numbers)
        if "int4" not in KV_FORMATS.get(manifest.op_profile, ("int4",)):
            numbers = f"The op profile {manifest.op_profile} has no 4-bit keys."
            raise _invalid(path, "'manifest.key_calibration' means nothing here.", numbers)
    if model.num_heads % model.num_kv_heads:
        numbers = f"{model.num_heads} is no multiple of {model.num_kv_heads}."
        raise _invalid(path, "'manifest.model.num_kv_heads' does not divide 'num_heads'.", numbers)
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
    covered = [(segment.first_layer, segment.end_layer) for segment in manifest.segments]
    if covered != [(0, model.num_layers)]:
        raise _invalid(path, "the segments are not one that has every layer.", f"Found {covered}.")


_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


def _check_files(path: Path, manifest: Manifest) -> None:
    named = [manifest.tokenizer.file, *(segment.graph for segment in manifest.segments), WEIGHTS_FILE]
    if manifest.chat_template is not None:
        named.append(manifest.chat_template)
    unlisted = sorted(set(named) - set(manifest.files))
    if unlisted:
        raise _invalid(path, "the manifest names files it does not list.", f"Not under 'files': {unlisted}.")
    for name, info in manifest.files.items():
        if not _SAFE_NAME.fullmatch(name):
            raise _invalid(path, "the manifest lists a path that leaves the package.", f"{name!r:.100} is not allowed.")
        file = path / name
        # Folders in between count as well: a link there would lead out of the package.
        linked = any(part.is_symlink() for part in (file, *file.parents[: name.count("/")]))
        if linked or not file.is_file():
            raise _invalid(path, f"file '{name}' is missing or not a regular file.", f"Expected {info.size} bytes.")
        size = file.stat().st_size
        if size != info.size:
            raise _invalid(path, f"file '{name}' has the wrong size.", f"Found {size} bytes, expected {info.size}.")


def _check_graphs(path: Path, manifest: Manifest) -> None:
    for segment in manifest.segments:
        # Locations count from the graph's folder, and the suffix decides how ONNX Runtime reads the file.
        if "/" in segment.graph or not segment.graph.endswith(".onnx"):
            raise _invalid(
                path, "a graph must be an .onnx file at the top of the package.", f"Found {segment.graph!r:.100}."
            )
        check_graph(path / segment.graph, WEIGHTS_FILE, manifest.files[WEIGHTS_FILE].size)


class PackageWriter:
    """Creates a package in a private folder beside its destination and renames it when complete.

    Use as a context manager: write files below ``folder``, then call ``publish``. Leaving the block
    without ``publish`` removes everything, new parent folders too; a killed process leaves only hidden
    folders that the next writer to the same place reclaims. If it was killed while it replaced a package,
    that writer first puts the old package back.

    Args:
        destination: folder to create.
        force: replace an existing package at the destination.

    Raises:
        StorageError: the destination exists (without ``force``, or if it is no package), or cannot be written.
    """

    def __init__(self, destination: Path, *, force: bool = False) -> None:
        self.destination = absolute_path(destination)
        self.force = force
        self.folder = self.destination.parent / f"{self._prefix()}{os.getpid()}-{secrets.token_hex(4)}"
        self._new_parents: tuple[Path, ...] = ()

    def _prefix(self) -> str:
        return f".{self.destination.name}.part-"

    def __enter__(self) -> Self:
        try:
            parents = self.destination.parents
            self._new_parents = tuple(parent for parent in parents if not parent.exists())
            self.destination.parent.mkdir(parents=True, exist_ok=True)
            self._reclaim()
            self._check_destination()
            self.folder.mkdir(mode=0o755)
        except BaseException as error:
            self._remove_new_parents()
            if not isinstance(error, OSError) or isinstance(error, StorageError):
                raise
            raise StorageError(
                f"{self.destination} cannot be written.",
                f"{error.strerror}.",
                "Choose another place with --out.",
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._remove_new_parents()

    def _remove_new_parents(self) -> None:
        for parent in self._new_parents:
            # One that holds something, such as the published package, stays.
            with contextlib.suppress(OSError):
                parent.rmdir()

    def _check_destination(self) -> None:
        if not _occupied(self.destination):
            return
        if not is_package(self.destination):
            raise StorageError(
                f"{self.destination} exists and is not a package.", "It would be lost.", "Choose another folder."
            )
        if not self.force:
            raise StorageError(
                f"{self.destination} exists already.",
                "Nothing was changed.",
                "Replace it with --force, or choose another folder.",
            )

    def _reclaim(self) -> None:
        """Remove what writers that no longer run have left, but for a package they moved aside and did not replace."""
        pattern = re.compile(re.escape(self._prefix()) + r"(\d{1,9})-[0-9a-f]{8}(-old)?")
        for left in self.destination.parent.iterdir():
            match = pattern.fullmatch(left.name)
            if match is None or psutil.pid_exists(int(match[1])):
                continue
            if match[2] and not _occupied(self.destination) and is_package(left):
                left.rename(self.destination)
            else:
                _remove(left)

    def publish(self, manifest: Manifest) -> Package:
        """Write the manifest last, flush everything to the disk, and put the folder in its place.

        ``manifest.files`` is filled in here from what lies in the folder.

        Raises:
            StorageError: the disk is full or the rename failed, and the destination is unchanged; or the last
                flush failed, and the message says that the package is in place.
        """
        try:
            manifest = dataclasses.replace(manifest, files=self._describe_files())
            (self.folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
            for file in [p for p in self.folder.rglob("*") if p.is_file()]:
                _fsync(file)
            _fsync(self.folder)
            self._replace_destination()
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"{self.destination} could not be written.",
                f"{error.strerror}.",
                "Free some space or choose another disk.",
            ) from error
        self._flush_parent()
        return open_package(self.destination)

    def _describe_files(self) -> dict[str, FileInfo]:
        files = sorted(p for p in self.folder.rglob("*") if p.is_file())
        return {
            p.relative_to(self.folder).as_posix(): FileInfo(size=p.stat().st_size, sha256=sha256_file(p)) for p in files
        }

    def _replace_destination(self) -> None:
        if not self.destination.exists():
            self.folder.rename(self.destination)
            return
        self._check_destination()
        old = self.folder.with_name(self.folder.name + "-old")
        try:
            self.destination.rename(old)
            self.folder.rename(self.destination)
        except BaseException:
            # An interrupt may come between the two as well.
            if _occupied(old) and not _occupied(self.destination):
                old.rename(self.destination)
            raise
        _remove(old)

    def _flush_parent(self) -> None:
        try:
            _fsync(self.destination.parent)
        except OSError as error:
            raise StorageError(
                f"{self.destination} is in place, but may not survive a power failure.",
                f"Flushing {self.destination.parent} failed: {error.strerror}.",
                "Check the disk, then the package with 'edge-rt inspect --verify'.",
            ) from error


def _occupied(path: Path) -> bool:
    """Tell whether anything lies there, a dangling link included."""
    return path.exists() or path.is_symlink()


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
