"""Which trained drafter a load takes, and why a mode of speculation cannot run with a package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edge_rt.errors import ConfigError, RuntimeUnavailable
from edge_rt.package.drafter import Drafter
from edge_rt.package.drafter_search import FoundDrafter, find_drafters, open_fitting
from edge_rt.package.exits import require_exit_mode
from edge_rt.package.reader import Package
from edge_rt.package.self_drafting import require_self_mode
from edge_rt.runtime.drafters.provider import DrafterMaker
from edge_rt.spec_modes import AUTO, DRAFTER_KINDS, DRAFTER_MODES, EXIT, NO_DRAFTER, TRAINED_MODES, mode_of


def choose_drafter(
    package: Package,
    spec: str | None,
    given: Path | None,
    makers: Mapping[str, DrafterMaker],
    *,
    installed: Path | None = None,
) -> Drafter | None:
    """Return the trained drafter that a mode of speculation takes with a package; None if it takes none.

    Without a named one, the first that fits is taken: heads come before adapters of exits, those of the package's
    folder before the installed ones.

    Args:
        package: the package.
        spec: mode of speculation as it is written; None is ``"auto"``.
        given: folder of a drafter that the user named; ``NO_DRAFTER``: none is taken.
        makers: what loads drafters, by kind.
        installed: as in ``find_drafters``.

    Raises:
        ConfigError: the mode uses no trained drafter although one was named, or needs what the package does not have.
        InvalidDrafter, UnsupportedModel, VersionMismatch, ModelNotFound, StorageError: the named one cannot be used.
        RuntimeUnavailable: this build cannot run such a drafter.
    """
    mode = mode_of(spec or AUTO)
    if given is not None and str(given) == NO_DRAFTER:
        _require_mode_without(mode)
        _require_mode_of_package(package, mode)
        return None
    if given is not None and mode not in DRAFTER_MODES:
        raise ConfigError(
            f"A trained drafter is not used with the mode of speculation {mode!r}.",
            f"It is used with {', '.join(DRAFTER_MODES)}.",
            "Leave one out.",
        )
    if mode not in TRAINED_MODES:
        _require_mode_of_package(package, spec or AUTO)
    if mode not in DRAFTER_MODES:
        return None
    if given is not None:
        drafter = open_fitting(Path(given).expanduser(), package)
        if mode not in (AUTO, drafter.info.kind):
            raise ConfigError(
                f"The drafter is not of the kind that the mode of speculation {mode!r} needs.",
                f"{drafter.path} is of the kind {drafter.info.kind}.",
                f"Use the mode {drafter.info.kind}, or name another drafter.",
            )
        require_maker(drafter.info.kind, makers)
        return drafter
    kinds = [kind for kind in DRAFTER_KINDS if mode in (AUTO, kind)]
    if mode not in TRAINED_MODES:
        kinds = [kind for kind in kinds if kind in makers]
    found = find_drafters(package, installed) if kinds else ()
    for kind in kinds:
        for one in found:
            if one.drafter is not None and one.reason is None and one.drafter.info.kind == kind:
                require_maker(kind, makers)
                return one.drafter
    if mode not in TRAINED_MODES:
        return None
    raise _none_found(package, mode, found)


def _require_mode_without(mode: str) -> None:
    """Refuse a mode of speculation that cannot do without a trained drafter, or never has one.

    Raises:
        ConfigError: it is such a mode.
    """
    if mode not in (AUTO, EXIT):
        raise ConfigError(
            f"A drafter of {NO_DRAFTER!r} is not used with the mode of speculation {mode!r}.",
            f"It is used with {AUTO} and {EXIT}.",
            "Leave one out.",
        )


def _none_found(package: Package, mode: str, found: tuple[FoundDrafter, ...]) -> ConfigError:
    if package.manifest.op_profile != "native":
        return ConfigError(
            f"The mode of speculation {mode!r} needs a native package.",
            f"The op profile is {package.manifest.op_profile}: its graph returns no hidden states.",
            "Export the model with --profile native, or choose another mode.",
        )
    others = [one for one in found if one.reason is not None]
    numbers = f"{package.path} has none, and none is installed for it."
    if others:
        numbers = f"{others[0].path} does not fit: {others[0].reason}."
    return ConfigError(
        f"There is no drafter of the kind {mode!r} for this package.",
        numbers,
        f"Train one: edge-rt train drafter -m MODEL --kind {mode}; or name one with --drafter FOLDER.",
    )


def require_maker(kind: str, makers: Mapping[str, DrafterMaker]) -> None:
    """Refuse a drafter that this build cannot run.

    Raises:
        RuntimeUnavailable: nothing loads its kind.
    """
    if kind not in makers:
        raise RuntimeUnavailable(
            "The drafter cannot run with this build of edge-rt.",
            f"It is of the kind {kind}; this build runs {', '.join(makers) or 'none'}.",
            "Choose another mode of speculation, or install another version.",
        )


def _require_mode_of_package(package: Package, spec: str) -> None:
    """Refuse modes that draft with the model's own layers or weights, and cannot here.

    Raises:
        ConfigError: they cannot.
    """
    mode = mode_of(spec)
    require_exit_mode(mode, has_exits=bool(package.manifest.exits))
    require_self_mode(mode, None, package.manifest)
