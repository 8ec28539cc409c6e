"""Messages about what a command does: limits of speculation with a model, why an answer waits, a budget not kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from edge_rt.cli.render.console import Terminal
from edge_rt.package.spec_modes import AUTO, DRAFTER_MODES, MODEL, NO_DRAFTER, OFF, USED_BY, Drafts, mode_of
from edge_rt.runtime.config import GenerationConfig
from edge_rt.system.byte_size import counted
from edge_rt.system.machine import usable_cpus

if TYPE_CHECKING:
    from edge_rt.runtime.load.options import LoadOptions
    from edge_rt.runtime.model import Model
    from edge_rt.runtime.results import Result


def note_unused_penalty(terminal: Terminal, model: Model, options: GenerationConfig, *, in_chat: bool = False) -> None:
    """Say that greedy answers do without the repetition penalty that the package advises."""
    advice = model.package.manifest.sampling
    penalty = None if advice is None else advice.given.get("repetition_penalty")
    if options.temperature != 0 or options.repetition_penalty is not None or penalty in (None, 1.0):
        return
    how = f"/set repetition_penalty {penalty}" if in_chat else f"--repeat-penalty {penalty}"
    terminal.note(
        f"at temperature 0 no advice of the package is used, not even its repetition penalty; {how} asks for it"
    )


def warn_of_format(terminal: Terminal, options: GenerationConfig) -> None:
    """Say what of the answer's format is not enforced.

    Raises:
        InvalidGrammar: it cannot be used.
    """
    wanted = options.answer_format()
    for warning in () if wanted is None else wanted.warnings:
        terminal.warn(warning)


WHY_NOTHING: Final = "with this model, tokens computed together differ slightly from tokens computed one by one"
"""Why nothing is drafted with a package, whatever is asked for."""

_WHY_NO_LIBRARY: Final = "the native library has no drafting core of this version; install edge-rt again"
_WHY_UNVERIFIED: Final = "no edge-rt verify of this package has passed on the device {device}"


NOT_SAVED: Final = "the measurement could not be saved: later commands will not know it."
"""Said of costs of passes that were measured, and that no file takes."""


class CalibrationNotices:
    """What is said of measurements that an answer waits for."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._has_measured = self._is_told = False

    def measuring(self, measured: str) -> None:
        """Show why the first answer waits: how long what is measured takes here."""
        self._has_measured = True
        text = f"measuring how long {measured} take, once for this model and these settings (2 s or more) ..."
        self._terminal.note(text, "dim")

    def lost(self) -> None:
        """Say once that a measurement is not kept; nobody has waited for what answers teach by the way."""
        if self._has_measured and not self._is_told:
            self._is_told = True
            self._terminal.warn(NOT_SAVED)


def never_drafts(mode: str, op_profile: str) -> bool:
    """Return whether a requested drafter never drafts in an op profile, because it has nothing to learn from."""
    return mode == "recycling" and op_profile != "native"


def warn_of_profile(terminal: Terminal, model: Model, mode: str, *, given: str) -> None:
    """Warn about the limits of a requested drafter in the op profile of this model."""
    drafts = model.speculation.drafts
    why = WHY_NOTHING if model.device is None else _WHY_UNVERIFIED.format(device=model.device.name)
    if drafts.are_exact and not model.speculation.has_library:
        why = _WHY_NO_LIBRARY
    if mode == AUTO and (drafts is Drafts.NOTHING or why is _WHY_NO_LIBRARY):
        terminal.note(f"speculation is off: {why}", "dim")
        return
    if mode in (OFF, AUTO) or drafts.are_exact:
        return
    if drafts is Drafts.NOTHING:
        terminal.warn(f"speculation is off, and {given} has no effect: {why}.")
        return
    profile = model.package.manifest.op_profile
    if never_drafts(mode, profile):
        terminal.warn(
            f"{given} never drafts with this model: it learns from the likely tokens of every row, and graphs of the "
            f"op profile {profile} do not return them."
        )
        return
    terminal.warn(
        f"the op profile of this model is {profile}: the results of its attention depend on which tokens are computed "
        f"together, so with {given} the text may differ from plain decoding. Only chains are drafted."
    )


def tell_drafters(terminal: Terminal, model: Model, load: LoadOptions) -> None:
    """With ``-v`` say which trained drafter is loaded, or why those that there are were not taken."""
    if not terminal.verbose or mode_of(load.spec or AUTO) not in DRAFTER_MODES:
        return
    second = model.describe()["draft_model"]
    if second is not None:
        terminal.note(f"model that drafts: {second}", "dim")
    if model.drafter is not None:
        terminal.note(f"drafter: {model.drafter.info.name}, {model.drafter.path}", "dim")
    if second is not None or model.drafter is not None:
        return
    from edge_rt.package.drafter_search import find_drafters

    if str(load.drafter) == NO_DRAFTER:
        return
    mode = mode_of(load.spec or AUTO)
    for found in find_drafters(model.package):
        why = found.reason
        if why is None and found.drafter is not None and mode not in (AUTO, found.drafter.info.kind):
            why = f"it is of the kind {found.drafter.info.kind}"
        why = why or ("it does not fit the memory" if model.plan.reduced else "this build cannot run it")
        terminal.note(f"drafter {found.path.name} is not used: {why}", "dim")


def why_not_auto(model: Model) -> str:
    """Return why a model does not use the mode ``auto``."""
    if model.speculation.drafts.are_exact:
        if not model.speculation.has_library:
            return _WHY_NO_LIBRARY
        return "auto, to fit the memory"
    if model.speculation.drafts is Drafts.NOTHING:
        return WHY_NOTHING
    return f"auto, op profile {model.package.manifest.op_profile}"


def warn_of_limits(
    terminal: Terminal, model: Model, load: LoadOptions, options: GenerationConfig, *, in_chat: bool = False
) -> None:
    """Warn about limits of speculation, unused flags and too many threads, with this model and these options.

    Args:
        options: options of the next generations; ``spec`` is None unless ``/set spec`` chose it.
        in_chat: name the slash command instead of the flag where there is one.
    """
    if load.threads is not None and load.threads > (cpus := usable_cpus()):
        terminal.warn(f"{load.threads} threads share {counted(cpus, 'CPU')}: -t {cpus} is faster.")
    wanted = load.spec if options.spec is None else options.spec
    asked = wanted or AUTO
    warn_of_profile(terminal, model, asked, given=f"--spec {asked}" if options.spec is None else f"/set spec {asked}")
    # Without a requested mode the plan chooses it: if memory is short, speculation may be off.
    mode = model.speculation.resolve(wanted, has_reference=options.reference is not None)
    given = {
        "--reference": options.reference,
        "--corpus": load.corpus,
        "--drafter": load.drafter,
        "--draft-max": load.draft_max,
        "--spec-trace": load.spec_trace,
    }
    if mode == f"{MODEL}:{load.drafter}":
        given["--drafter"] = None  # it is that package
    unused = [flag for flag, modes in USED_BY.items() if given[flag] is not None and mode_of(mode) not in modes]
    if in_chat:
        unused = ["/set reference" if flag == "--reference" else flag for flag in unused]
    if unused:
        why = "speculation is off" if mode == OFF else f"{mode} drafts alone"
        where = f" ({why_not_auto(model)})" if mode != asked else ""
        terminal.warn(f"{why}{where}: not used: {', '.join(unused)}.")


THOUGHT_SWITCHES: Final = ("enable_thinking", "thinking")
"""Arguments that turn thoughts on and off, by the names that templates know."""


def thought_switch(model: Model) -> str | None:
    """Return the argument that turns a model's thoughts on and off; None if its template has none."""
    return next((name for name in THOUGHT_SWITCHES if name in model.template_variables), None)


def warn_of_prompt_cache(terminal: Terminal, options: GenerationConfig, result: Result) -> None:
    """Say what went wrong with a prompt cache; what is said of a format was said before the answer."""
    if not result.warnings:
        return
    wanted = options.answer_format()
    for warning in result.warnings:
        if wanted is None or warning not in wanted.warnings:
            terminal.warn(warning)


def warn_of_driver(terminal: Terminal, model: Model) -> bool:
    """Warn if the process of a GPU's driver has taken more than its budget; return whether."""
    if (text := model.over_budget) is not None:
        terminal.warn(text)
    return text is not None


def warn_of_template(terminal: Terminal, model: Model, arguments: Mapping[str, Any]) -> None:
    """Warn of a template that is not the model's own, and of arguments that it does not read."""
    if model.has_fallback_template:
        from edge_rt.text.template import FALLBACK_WARNING  # late: brings the template engine

        terminal.warn(f"{FALLBACK_WARNING} 'generate --raw' continues a plain text.")
    known = model.template_variables
    unread = [name for name in arguments if name not in known]
    if unread:
        reads = f"it reads {', '.join(sorted(known))}" if known else "it reads none"
        terminal.warn(f"the chat template has no argument {', '.join(unread)}; {reads}.")
