"""Which networks draft for a package, as numbers for its plan: a trained drafter, a second model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edge_rt.byte_size import counted
from edge_rt.errors import ConfigError
from edge_rt.memory.draft_model import DraftModelShape
from edge_rt.memory.drafter_shape import DrafterShape, drafter_shape
from edge_rt.memory.shape import shape_of
from edge_rt.package.reader import Package, is_package, open_package
from edge_rt.runtime.drafters.provider import DrafterMaker
from edge_rt.runtime.load.drafters import choose_drafter
from edge_rt.spec_modes import AUTO, NO_DRAFTER, drafting_package, mode_of
from edge_rt.text.vocabulary import shared_tokens


def drafting_shapes(
    package: Package, spec: str | None, given: Path | None, makers: Mapping[str, DrafterMaker]
) -> tuple[DrafterShape | None, DraftModelShape | None]:
    """Return the numbers of the trained drafter and of the second model that a load takes; None for none.

    Args:
        package: the package.
        spec: mode of speculation as it is written; None is ``"auto"``.
        given: folder that the user named as drafter: of a trained one, or with ``"auto"`` of a package; ``NO_DRAFTER``:
            none is taken.
        makers: what loads trained drafters, by kind.

    Raises:
        ConfigError, InputError, RuntimeUnavailable, StorageError: see ``choose_drafter`` and ``choose_draft_model``.
    """
    second = choose_draft_model(package, spec, given)
    # With auto a package may be named as drafter; then nobody has named a trained one.
    named = None if second is not None and mode_of(spec or AUTO) == AUTO else given
    found = choose_drafter(package, spec, named, makers)
    return None if found is None else drafter_shape(found, package.manifest), second


def choose_draft_model(package: Package, spec: str | None, given: Path | None) -> DraftModelShape | None:
    """Return the numbers of the model that drafts for a package; None if none does.

    Args:
        package: the package.
        spec: mode of speculation as it is written; None is ``"auto"``. ``"model:PACKAGE"`` names the second model.
        given: folder that the user named as drafter; with ``"auto"`` it may be a package, which then drafts as well.

    Raises:
        ConfigError: there is no such package, its tokens mean something else, or its graph cannot draft.
        InputError, StorageError: it cannot be opened; see ``open_package``.
    """
    asked = drafting_package(spec or AUTO)
    if asked is not None:
        path = Path(asked).expanduser()
        if not is_package(path):
            raise ConfigError(
                "The package that is to draft does not exist.",
                f"{path} is no folder of a package.",
                "Write model:PACKAGE with the folder of a package.",
            )
    elif (
        mode_of(spec or AUTO) == AUTO
        and given is not None
        and str(given) != NO_DRAFTER
        and is_package(Path(given).expanduser())
    ):
        path = Path(given).expanduser()
    else:
        return None
    second = open_package(path)
    manifest = second.manifest
    if manifest.op_profile != "native" or len(manifest.segments) != 1:
        raise ConfigError(
            "The package that is to draft cannot.",
            f"Its op profile is {manifest.op_profile!r}, with {counted(len(manifest.segments), 'segment')}; "
            "'native' with one is needed.",
            "Export it again with --profile native and without exits.",
        )
    return DraftModelShape(shape_of(manifest, second.id), str(second.path), _known_tokens(package, second))


def _known_tokens(package: Package, second: Package) -> int:
    """Return below which id tokens are the same in both packages.

    Raises:
        ConfigError: neither tokenizer extends the other.
    """
    ours, theirs = (one.manifest.files[one.manifest.tokenizer.file].sha256 for one in (package, second))
    rows = min(package.manifest.model.vocab_size, second.manifest.model.vocab_size)
    if ours == theirs:
        return rows
    shared = shared_tokens(*(one.file(one.manifest.tokenizer.file) for one in (package, second)))
    if shared is None:
        raise ConfigError(
            "The package that is to draft has another tokenizer.",
            f"Its tokenizer is {theirs[:12]}, the model's is {ours[:12]}; neither extends the other.",
            "Choose a package with the same tokenizer.",
        )
    return min(shared, rows)
