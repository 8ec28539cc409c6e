"""Modes of speculation: which drafters each mode runs, and which inputs it uses."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final

from edge_rt.errors import ConfigError

if TYPE_CHECKING:
    from edge_rt.package.weights_info import TracedInfo

OFF: Final = "off"
AUTO: Final = "auto"
EXIT: Final = "exit"
"""Drafts with the first layers of the model itself, in packages with exits."""
SELF: Final = "self"
"""Drafts with fewer bits of the model's own weights and cache, in packages with nested weights."""
AHEAD: Final = "mtp"
"""Drafts with a block of the checkpoint that predicts further ahead (multi-token prediction), in packages with one."""
MODEL: Final = "model"
SPEC_MODES: Final = (OFF, AUTO, "ngram", "suffix", "recycling", "reference", "head", EXIT, SELF, AHEAD, MODEL)
"""``auto`` runs the drafters suffix, recycling, where a text is given reference, a trained head if there is one, in
packages with exits exit, with nested weights and their cache self, with a block that predicts further ahead mtp, and a
package that is named as drafter, and chooses among their drafts. ``model`` is written with the package that drafts:
``model:PACKAGE``."""
SHOWN_MODES: Final = (*SPEC_MODES[:-1], f"{MODEL}:PACKAGE")
"""The modes as users write them."""
COMPUTED_MODES: Final = ("head", EXIT, SELF, AHEAD, MODEL)
"""The modes whose drafter is a network: the model must be loaded with it, or have it in its package."""
TRAINED_MODES: Final = ("head",)
"""Those that need a network trained for the model, which lies beside its package or is installed with edge-rt."""
DRAFTER_KINDS: Final = (*TRAINED_MODES, EXIT)
"""Kinds of trained drafters, the one that ``auto`` prefers first. Exits draft without one as well."""
DRAFTER_MODES: Final = (AUTO, *DRAFTER_KINDS)
"""The modes that use a trained drafter."""
NO_DRAFTER: Final = "none"
"""Written in place of a drafter's folder: no trained one is used, although one may fit."""
CORPUS_MODES: Final = (AUTO, "suffix")
"""The modes that look drafts up in a corpus."""
REFERENCE_MODES: Final = (AUTO, "reference")
"""The modes that copy from a reference text."""
RATIO_MODE: Final = "recycling"
"""The mode whose drafter knows the probabilities of its draft tokens, which the acceptance rule ``"ratio"`` needs."""
MAX_DRAFT: Final = 63
"""Most drafted tokens of a pass."""


class Drafts(Enum):
    """What speculation may draft, which depends on the bits of a package's passes."""

    TREES = "trees"
    """Trees: every row of a pass has the bits of a single row."""
    CHAINS = "chains"
    """Chains: rows of a pass have the bits of single rows, and the graph computes no trees."""
    ASKED_CHAINS = "asked chains"
    """Chains if a drafter is asked for by name: the text may differ from plain decoding."""
    NOTHING = "nothing"
    """Nothing, whatever is asked for."""

    @property
    def are_exact(self) -> bool:
        """Whether what is drafted changes no text, so that the mode ``auto`` drafts."""
        return self in (Drafts.TREES, Drafts.CHAINS)


USED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "--reference": REFERENCE_MODES,
    "--corpus": CORPUS_MODES,
    "--drafter": DRAFTER_MODES,
    "--draft-max": SPEC_MODES[1:],
    "--spec-trace": SPEC_MODES[1:],
}
"""Flag of the command line -> the modes that use it."""


def require_mode(mode: str) -> None:
    """Refuse an unknown mode of speculation."""
    if mode in (MODEL, f"{MODEL}:"):
        raise ConfigError(
            "The mode of speculation names no package that drafts.", f"Got {mode!r}.", "Write model:PACKAGE."
        )
    if mode_of(mode) not in SPEC_MODES:
        raise ConfigError(
            "The mode of speculation is unknown.", f"Got {mode!r:.40}.", f"Choose one of {', '.join(SHOWN_MODES)}."
        )


def mode_of(spec: str) -> str:
    """Return one of ``SPEC_MODES`` for a mode as it is written: ``"model"`` for ``"model:PACKAGE"``."""
    return MODEL if spec.startswith(f"{MODEL}:") else spec


def drafting_package(spec: str) -> str | None:
    """Return the package that drafts, as it is written in ``"model:PACKAGE"``; None for other modes."""
    return spec.removeprefix(f"{MODEL}:") if mode_of(spec) == MODEL else None


def require_draft_max(draft_max: int) -> None:
    """Refuse a draft limit that is out of range."""
    if type(draft_max) is not int or not 1 <= draft_max <= MAX_DRAFT:
        raise ConfigError(
            "The largest draft is out of range.",
            f"Got {draft_max} tokens.",
            f"Choose 1 to {MAX_DRAFT}, or turn speculation off.",
        )


def require_rule(accept: str, mode: str) -> None:
    """Refuse an acceptance rule that does not work with a mode."""
    if accept == "ratio" and mode != RATIO_MODE:
        raise ConfigError(
            "The acceptance rule 'ratio' needs a drafter with known draft probabilities.",
            f"The mode of speculation is {mode!r}; only {RATIO_MODE!r} has them.",
            f"Choose {RATIO_MODE} (spec={RATIO_MODE!r}, --spec {RATIO_MODE}), or the rule 'match'.",
        )


def drafts_of(op_profile: str, traced: TracedInfo | None) -> Drafts:
    """Return what speculation may draft with a package of an op profile; ``traced`` as in its manifest."""
    if traced is not None:
        return Drafts.CHAINS if traced.exact_rows > 1 else Drafts.NOTHING
    return Drafts.TREES if op_profile == "native" else Drafts.ASKED_CHAINS
