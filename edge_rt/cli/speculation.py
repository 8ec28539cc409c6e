"""What is said of speculation: why an answer waits, and what a mode does not promise or does not do with a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_rt.cli.render.console import Terminal
from edge_rt.runtime.config import GenerationConfig
from edge_rt.spec_modes import AUTO, OFF, USED_BY

if TYPE_CHECKING:
    from edge_rt.runtime.engine import Model
    from edge_rt.runtime.load.options import LoadOptions


def tell_calibration(terminal: Terminal) -> None:
    """Say why the first answer waits."""
    terminal.note("measuring what passes cost here (kept for later)", "dim")


def never_drafts(mode: str, op_profile: str) -> bool:
    """Return whether a drafter that was asked for has nothing to learn from in an op profile."""
    return mode == "recycling" and op_profile != "native"


def warn_of_profile(terminal: Terminal, model: Model, mode: str, *, given: str) -> None:
    """Say what a drafter that was asked for does not promise, or does not do, in the op profile of this model.

    Args:
        terminal: where to.
        model: the model.
        mode: the mode of speculation that was asked for.
        given: how it was asked for, such as ``--spec ngram``.
    """
    if mode in (OFF, AUTO) or model.speculation.exact:
        return
    profile = model.package.manifest.op_profile
    if never_drafts(mode, profile):
        terminal.warn(
            f"{given} never drafts with this model: it learns from the likely tokens of every row, and graphs of the "
            f"op profile {profile} do not return them."
        )
        return
    terminal.warn(
        f"the op profile of this model is {profile}: what its attention computes for a token depends on the tokens "
        f"beside it, so with {given} the text may differ from plain decoding. Only chains are drafted."
    )


def why_not_auto(model: Model) -> str:
    """Return why a model does something else than ``auto``."""
    if model.speculation.exact:
        return "auto, to fit the memory"
    return f"auto, op profile {model.package.manifest.op_profile}"


def warn_of_limits(
    terminal: Terminal, model: Model, load: LoadOptions, options: GenerationConfig, *, in_chat: bool = False
) -> None:
    """Say what speculation does not promise, or does not do, with this model and these options; often nothing.

    Args:
        terminal: where to.
        model: the model.
        load: how it was loaded.
        options: of the generations to come; ``spec`` is None unless ``/set spec`` chose it.
        in_chat: name the command of a chat for what can be changed there, not the flag.
    """
    wanted = load.spec if options.spec is None else options.spec
    asked = wanted or AUTO
    warn_of_profile(terminal, model, asked, given=f"--spec {asked}" if options.spec is None else f"/set spec {asked}")
    # Without a mode it is the plan's: where memory is short, speculation may be off.
    mode = model.speculation.resolve(wanted, has_reference=options.reference is not None)
    given = {
        "--reference": options.reference,
        "--corpus": load.corpus,
        "--draft-max": load.draft_max,
        "--spec-trace": load.spec_trace,
    }
    unused = [flag for flag, modes in USED_BY.items() if given[flag] is not None and mode not in modes]
    if in_chat:
        unused = ["/set reference" if flag == "--reference" else flag for flag in unused]
    if unused:
        why = "speculation is off" if mode == OFF else f"{mode} drafts alone"
        where = f" ({why_not_auto(model)})" if mode != asked else ""
        terminal.warn(f"{why}{where}: not used: {', '.join(unused)}.")
