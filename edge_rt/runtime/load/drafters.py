"""What may draft in a load: a trained drafter, a second model, or nothing where rows of a pass are not exact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from edge_rt.errors import ConfigError
from edge_rt.memory.drafter_shapes import DrafterShape, drafter_shape
from edge_rt.memory.shape import DraftModelShape, shape_of_package
from edge_rt.package.drafter import TrainedDrafter
from edge_rt.package.drafter_search import FoundDrafter, find_drafters, open_fitting
from edge_rt.package.exits import require_exit_mode, require_self_mode
from edge_rt.package.reader import Package, is_package, open_package
from edge_rt.package.spec_modes import (
    AUTO,
    DRAFTER_KINDS,
    DRAFTER_MODES,
    EXIT,
    NO_DRAFTER,
    OFF,
    TRAINED_MODES,
    Drafts,
    drafting_package,
    mode_of,
)
from edge_rt.system.byte_size import counted
from edge_rt.text.tokenizer_check import invalid, parse, read_file

if TYPE_CHECKING:
    from edge_rt.runtime.forward.io_binding_base import IOBinding
    from edge_rt.runtime.forward.outputs import Outputs
    from edge_rt.runtime.forward.runner import Runner
    from edge_rt.runtime.load.load_plan import LoadPlan

CONTEXT: Final = 17
"""Tokens before the rows that are compared."""
MOST_ROWS: Final = 8


def choose_drafter(
    package: Package,
    spec: str | None,
    given: Path | None,
    *,
    installed: Path | None = None,
) -> TrainedDrafter | None:
    """Return the trained drafter that a mode of speculation takes with a package; None if it takes none.

    Without a named one, the first that fits is taken: heads come before adapters of exits, those of the package's
    folder before the installed ones.

    Args:
        spec: mode of speculation as it is written; None is ``"auto"``.
        given: folder of a drafter that the user named; ``NO_DRAFTER``: none is taken.
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
        return drafter
    kinds = [kind for kind in DRAFTER_KINDS if mode in (AUTO, kind)]
    found = find_drafters(package, installed) if kinds else ()
    for kind in kinds:
        for one in found:
            if one.drafter is not None and one.reason is None and one.drafter.info.kind == kind:
                return one.drafter
    if mode not in TRAINED_MODES:
        return None
    raise _none_found(package, mode, found)


def _require_mode_without(mode: str) -> None:
    """Refuse a mode of speculation that cannot do without a trained drafter, or never has one."""
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
            "Export the model with the profile native, or choose another mode.",
        )
    others = [one for one in found if one.reason is not None]
    numbers = f"{package.path} has none, and none is installed for it."
    if others:
        numbers = f"{others[0].path} does not fit: {others[0].reason}."
    return ConfigError(
        f"There is no drafter of the kind {mode!r} for this package.",
        numbers,
        f"Train one: edge-rt train drafter -m MODEL --kind {mode}; or name one (--drafter, drafter=).",
    )


def _require_mode_of_package(package: Package, spec: str) -> None:
    """Refuse modes that draft with the model's own layers or weights, and cannot here."""
    mode = mode_of(spec)
    require_exit_mode(mode, has_exits=bool(package.manifest.exits))
    require_self_mode(mode, None, package.manifest)


def shared_tokens(first: Path, second: Path) -> int | None:
    """Return below which id two tokenizers have the same tokens, if one extends the other.

    Returns:
        The number of ids of the smaller one; None if a token of it has another id, or none, in the other.
    """
    smaller, larger = sorted((_token_texts(first), _token_texts(second)), key=len)
    if any(larger.get(token_id) != text for token_id, text in smaller.items()):
        return None
    return max(smaller, default=-1) + 1


def _token_texts(path: Path) -> dict[int, str]:
    """Return the vocabulary's spelling of every token."""
    document = parse(read_file(path), path.name)
    model, added = document.get("model"), document.get("added_tokens") or []
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(vocabulary, Mapping) or not isinstance(added, list):
        raise invalid(f"{path.name} has no vocabulary.", "It lacks model.vocab or added_tokens.")
    pairs = [*vocabulary.items(), *((one.get("content"), one.get("id")) for one in added if isinstance(one, Mapping))]
    if not all(isinstance(text, str) and type(token_id) is int and token_id >= 0 for text, token_id in pairs):
        raise invalid(f"{path.name} has a malformed vocabulary.", "Tokens are texts with whole numbers.")
    return {token_id: text for text, token_id in pairs}


def drafting_shapes(
    package: Package, spec: str | None, given: Path | None
) -> tuple[DrafterShape | None, DraftModelShape | None]:
    """Return the numbers of the trained drafter and of the second model that a load takes; None for none.

    Args:
        spec: mode of speculation as it is written; None is ``"auto"``.
        given: folder that the user named as drafter: of a trained one, or with ``"auto"`` of a package; ``NO_DRAFTER``:
            none is taken.
    """
    second = choose_draft_model(package, spec, given)
    # With auto a package may be named as drafter; then nobody has named a trained one.
    named = None if second is not None and mode_of(spec or AUTO) == AUTO else given
    found = choose_drafter(package, spec, named)
    return None if found is None else drafter_shape(found, package.manifest), second


def choose_draft_model(package: Package, spec: str | None, given: Path | None) -> DraftModelShape | None:
    """Return the numbers of the model that drafts for a package; None if none does.

    Args:
        spec: mode of speculation as it is written; None is ``"auto"``. ``"model:PACKAGE"`` names the second model.
        given: folder that the user named as drafter; with ``"auto"`` it may be a package, which then drafts as well.
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
            "Export it again with the profile native and without exits.",
        )
    if manifest.model.recurrent_layers:
        raise ConfigError(
            "The package that is to draft cannot.",
            f"{counted(len(manifest.model.recurrent_layers), 'layer')} have a state, which takes no draft back.",
            "Choose a package whose layers all attend.",
        )
    return DraftModelShape(shape_of_package(second), str(second.path), _known_tokens(package, second))


def _known_tokens(package: Package, second: Package) -> int:
    """Return below which id tokens are the same in both packages."""
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


class Forward(Protocol):
    """Runs passes, as ``ModelRunner`` does."""

    def forward(self, token_ids: list[int], start: int, num_logits: int) -> Outputs:
        """Compute tokens into the cache's rows from ``start`` on, and return the logits of the last ones."""


def rows_are_exact(runner: Forward, *, vocab_size: int, capacity: int, most_rows: int) -> bool:
    """Compare the logits of passes over several rows with those of single rows, bit by bit.

    Args:
        runner: runs the passes; the first rows of its cache are overwritten.

    Returns:
        Whether all are equal; False if the cache has no room for two rows.
    """
    # A plan reads this module and computes no passes.
    import numpy as np

    rows = min(MOST_ROWS, most_rows)
    context = min(CONTEXT, capacity - rows)
    if rows < 2 or context < 1:
        return False
    ids = [(11 + 7919 * i) % vocab_size for i in range(context + rows)]
    runner.forward(ids[:context], 0, 1)
    singles = [
        runner.forward([token], context + number, 1).logits[0].copy() for number, token in enumerate(ids[context:])
    ]
    for count in {2, rows}:
        together = runner.forward(ids[context : context + count], context, count).logits
        if not all(np.array_equal(found, single) for found, single in zip(together, singles, strict=False)):
            return False
    return True


def allowed_drafts(
    package: Package,
    load_plan: LoadPlan,
    runner: Runner,
    io_binding: IOBinding,
    verification: dict[str, Any] | None,
) -> Drafts:
    """Return what may be drafted: what the package states, if rows of a traced graph are exact here as well.

    On a device it is nothing until a verification of the package has passed there.
    """
    drafts = package.manifest.drafts
    if verification is not None:
        from edge_rt.runtime.speculation.stored_costs import user_verified

        if user_verified().load(verification) is None:
            return Drafts.NOTHING
    if drafts is not Drafts.CHAINS or load_plan.spec_mode == OFF:
        return drafts
    is_exact = rows_are_exact(
        runner,
        vocab_size=package.manifest.model.vocab_size,
        capacity=io_binding.capacity,
        most_rows=load_plan.logit_rows,
    )
    io_binding.forget()
    return drafts if is_exact else Drafts.NOTHING
