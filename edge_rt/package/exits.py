"""Early exits: layers behind which a package's graph is cut, so that a draft can end there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edge_rt.errors import ConfigError
from edge_rt.package.manifest import Manifest
from edge_rt.package.spec_modes import AHEAD, AUTO, EXIT, SELF
from edge_rt.system.byte_size import counted

MAX_EXITS: Final = 8
"""Most exits of a package: every one of them is a graph that a pass runs more."""


def parse_exits(text: str) -> tuple[int, ...]:
    """Return the exits of a list such as ``"6,10,15"``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS for part in parts):
        raise ConfigError(
            "--exits must be a list of layer numbers.", f"Got {text!r:.60}.", "Write it as --exits 6,10,15."
        )
    return tuple(int(part) for part in parts)


def require_exits(exits: Sequence[int], num_layers: int, op_profile: str) -> None:
    """Refuse exits that a package cannot have; no exits are always right.

    Args:
        exits: numbers of layers: an exit k is behind the first k layers.
    """
    if not exits:
        return
    if op_profile != "native":
        raise ConfigError(
            "Early exits need the native op profile.",
            f"The op profile is {op_profile}; asked for: {counted(len(exits), 'exit')}.",
            "Leave out --exits, or export the model with --profile native.",
        )
    if len(exits) > MAX_EXITS:
        raise ConfigError(
            "There are too many exits.", f"Got {len(exits)}, at most {MAX_EXITS} are taken.", "Leave some of them out."
        )
    rising = all(before < after for before, after in zip([0, *exits], exits, strict=False))
    if not rising or exits[-1] >= num_layers:
        raise ConfigError(
            "The exits do not lie between the model's layers in rising order.",
            f"Got {', '.join(map(str, exits))}; the model has {num_layers} layers.",
            f"Choose different numbers from 1 to {num_layers - 1}, the smallest first.",
        )


def require_exit_mode(mode: str | None, *, has_exits: bool) -> None:
    """Refuse a mode of speculation that needs exits, with a package that has none."""
    if mode == EXIT and not has_exits:
        raise ConfigError(
            "The package has no exits at which a draft could end.",
            f"The mode of speculation is {mode!r}, and the package is a single graph.",
            "Export the model with --exits, such as --exits 6,10,15, or choose another mode.",
        )


_MOST_DIGITS: Final = 9


SELF_KV: Final = "int4x2"
"""Format of the cache whose upper halves are a cache of their own."""


def require_self_mode(mode: str | None, kv: str | None, manifest: Manifest) -> None:
    """Refuse the mode ``"self"`` with a package, or with a cache, that has no upper halves to draft with.

    Args:
        kv: format of the cache, as asked for; None and ``"auto"`` leave the choice open.
    """
    if mode != SELF:
        return
    if manifest.draft_graph is None:
        found = "+".join(dict.fromkeys(manifest.quantisation.values()))
        raise ConfigError(
            "The package has no nested weights to draft with.",
            f"The mode of speculation is {mode!r}; its matrices are of the types {found:.80}.",
            "Export the model from floats with --weights nested8, or choose another mode.",
        )
    if kv not in (None, AUTO, SELF_KV):
        raise ConfigError(
            "The cache's format has no upper halves to draft with.",
            f"The mode of speculation is {mode!r}, the format {kv!r:.40}.",
            f"Leave the format out, or choose {SELF_KV}.",
        )


def kv_of(mode: str | None, kv: str | None) -> str | None:
    """Return the format of the cache that is asked for: that of the mode ``"self"`` where it is left open."""
    return SELF_KV if mode == SELF and kv in (None, AUTO) else kv


def require_ahead_mode(mode: str | None, manifest: Manifest) -> None:
    """Refuse the mode ``"mtp"`` with a package that has no block that predicts further ahead."""
    if mode == AHEAD and manifest.ahead is None:
        raise ConfigError(
            "The package has no block that predicts further ahead.",
            f"The mode of speculation is {mode!r}; the package is of the architecture {manifest.model.family:.60}.",
            "Of checkpoints that have one, such as most of Qwen 3.5, it comes along with --profile native and without "
            "exits. Choose another mode.",
        )
