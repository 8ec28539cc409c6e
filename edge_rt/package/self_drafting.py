"""What drafting with fewer bits of the model itself asks of a package and of the cache."""

from __future__ import annotations

from typing import Final

from edge_rt.errors import ConfigError
from edge_rt.package.manifest import Manifest
from edge_rt.spec_modes import AUTO, SELF

SELF_KV: Final = "int4x2"
"""Format of the cache whose upper halves are a cache of their own."""


def require_self_mode(mode: str | None, kv: str | None, manifest: Manifest) -> None:
    """Refuse the mode ``"self"`` with a package, or with a cache, that has no upper halves to draft with.

    Args:
        mode: of speculation, as asked for.
        kv: format of the cache, as asked for; None and ``"auto"`` leave the choice open.
        manifest: of the package.

    Raises:
        ConfigError: the package has no nested weights, or the cache has another format.
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
