"""Which trained drafters there are for a package, and why others do not fit."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_rt.errors import EdgeRTError, InvalidDrafter
from edge_rt.package.drafter import DRAFTERS_FOLDER, DrafterInfo, DraftTarget, TrainedDrafter
from edge_rt.package.drafter_reader import is_drafter, open_drafter
from edge_rt.package.manifest import Manifest
from edge_rt.package.reader import Package

_SHOWN: Final = 12  # digits of a hash
_MOST: Final = 256  # entries of a folder that are looked at


@dataclass(frozen=True)
class FoundDrafter:
    """A drafter that was found.

    Attributes:
        origin: ``"package"`` (it lies in the package's folder) or ``"installed"`` (with edge-rt).
        drafter: the opened drafter; None if it cannot be opened.
        reason: why it cannot be used with the package; None: it can.
    """

    path: Path
    origin: str
    drafter: TrainedDrafter | None
    reason: str | None


def find_drafters(package: Package, installed: Path | None = None) -> tuple[FoundDrafter, ...]:
    """Return the drafters in a package's folder and those installed with edge-rt, usable or not; by name in each place.

    Installed ones for models of other names are left out: they are not about this package.

    Args:
        installed: folder of the installed ones; None for the one that comes with edge-rt.
    """
    own = [_judged(path, "package", package) for path in _folders(package.path / DRAFTERS_FOLDER)]
    others = [_judged(path, "installed", package) for path in _folders(installed or installed_drafters())]
    return (*own, *(one for one in others if _is_about(one, package.manifest.model.name)))


def open_fitting(path: Path, package: Package) -> TrainedDrafter:
    """Open a drafter that was named for a package."""
    drafter = open_drafter(path)
    reason = mismatch(drafter.info.target, package.manifest)
    if reason is None and (missing := _without_exits(drafter.info, package.manifest)) is not None:
        raise InvalidDrafter(
            f"{drafter.path}: the drafter has nothing to draft with in this package.",
            f"{missing[:1].upper()}{missing[1:]}.",
            f"Export the model with --exits {','.join(map(str, drafter.info.layers))}, or name another drafter.",
        )
    if reason is not None:
        raise InvalidDrafter(
            f"{drafter.path}: the drafter was trained for another model.",
            f"{reason[:1].upper()}{reason[1:]}.",
            "Choose another drafter, or train one for this package: edge-rt train drafter.",
        )
    return drafter


def mismatch(target: DraftTarget, manifest: Manifest) -> str | None:
    """Return why a drafter for ``target`` cannot be used with a package, as half a sentence; None if it can."""
    own = DraftTarget.of(manifest)
    if target.source_sha256 != own.source_sha256:
        theirs, ours = target.source_sha256[:_SHOWN], own.source_sha256[:_SHOWN]
        return f"it was trained for {target.name!s:.60}, checkpoint {theirs}; this package was made from {ours}"
    if dict(target.quantisation) != dict(own.quantisation):
        theirs, ours = (_types(one.quantisation) for one in (target, own))
        return f"it was trained for matrices of the types {theirs}; this package has {ours}"
    if target.tokenizer_sha256 != own.tokenizer_sha256:
        theirs, ours = target.tokenizer_sha256[:_SHOWN], own.tokenizer_sha256[:_SHOWN]
        return f"its tokenizer is {theirs}; the package's is {ours}"
    for name in ("hidden_size", "vocab_size", "num_layers"):
        if getattr(target, name) != getattr(own, name):
            return f"its {name} is {getattr(target, name)}; the package's is {getattr(own, name)}"
    if manifest.op_profile != "native":
        return f"graphs of the op profile {manifest.op_profile} return no hidden states to draft from"
    return None


def _without_exits(info: DrafterInfo, manifest: Manifest) -> str | None:
    """Return that a package has none of a drafter's exits, as half a sentence; None if it has one, or needs none."""
    if not info.exits or set(info.layers) & set(manifest.exits):
        return None
    theirs, ours = (", ".join(map(str, layers)) or "none" for layers in (info.layers, manifest.exits))
    return f"its adapters are for the exits behind the layers {theirs}; the package has {ours}"


def installed_drafters() -> Path:
    """Return the folder of drafters inside the installed edge-rt, or beside it in a checkout; it may not exist."""
    installed = Path(str(importlib.resources.files("edge_rt"))) / "models"
    if installed.is_dir():
        return installed / DRAFTERS_FOLDER
    return Path(__file__).resolve().parents[2] / "models" / DRAFTERS_FOLDER


def _folders(folder: Path) -> Iterator[Path]:
    """Yield the folders of drafters inside a folder; links, which could lead anywhere, are left out."""
    if folder.is_symlink() or not folder.is_dir():
        return
    try:
        entries = sorted(folder.iterdir())[:_MOST]
    except OSError:
        return
    yield from (path for path in entries if not path.is_symlink() and is_drafter(path))


def _is_about(found: FoundDrafter, name: str) -> bool:
    return found.drafter is None or found.reason is None or found.drafter.info.target.name == name


def _judged(path: Path, origin: str, package: Package) -> FoundDrafter:
    try:
        drafter = open_drafter(path)
    except EdgeRTError as error:
        return FoundDrafter(path, origin, None, str(error))
    manifest = package.manifest
    reason = mismatch(drafter.info.target, manifest) or _without_exits(drafter.info, manifest)
    return FoundDrafter(path, origin, drafter, reason)


def _types(quantisation: Mapping[str, str]) -> str:
    return f"{', '.join(f'{name} {kind}' for name, kind in quantisation.items())!s:.120}"
