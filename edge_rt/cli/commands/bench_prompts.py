"""``edge-rt bench --prompts``: the speed-up of speculation on the prompts of a file."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from edge_rt.cli.interrupt import each_in_background
from edge_rt.cli.notices import warn_of_profile
from edge_rt.cli.options import answer_flags, flags
from edge_rt.cli.options.groups import PlaceFlags, SpeculationFlags, place_drafter, place_spec
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.progress import StatusLine
from edge_rt.cli.render.stats import visible_shares
from edge_rt.cli.render.verify_report import markdown
from edge_rt.errors import ContextOverflow
from edge_rt.package.spec_modes import AUTO, Drafts
from edge_rt.runtime.config import GenerationConfig

if TYPE_CHECKING:
    from edge_rt.measure.prompts import LeftOut, Prompt
    from edge_rt.measure.speculation_benchmark import Sample
    from edge_rt.runtime.model import Model

DEFAULT_MAX_TOKENS: Final = 256
FEW_PROMPTS: Final = 4
"""Fewest prompts for meaningful figures."""


_IN: Final = flags.WITH_PROMPTS


@dataclass(frozen=True)
class PromptFlags:
    """How prompts are measured; None is a flag that was not given."""

    prompts: Annotated[
        Path | None,
        flags.PROMPTS.but(
            help="Measure the speed-up of speculation on these: JSON lines with 'turns' or 'prompt', or a text a line.",
            panel=_IN,
        ),
    ] = None
    spec: Annotated[
        str | None,
        flags.SPEC.but(help="auto, off, or a drafter; reference copies from the prompt.", shown="auto", panel=_IN),
    ] = None
    draft_max: Annotated[int | None, flags.DRAFT_MAX.but(panel=_IN)] = None
    corpus: Annotated[Path | None, flags.CORPUS.but(panel=_IN)] = None
    drafter: Annotated[Path | None, flags.DRAFTER.but(panel=_IN)] = None
    max_tokens: Annotated[int | None, answer_flags.MAX_TOKENS.but(shown="256", least=1, panel=_IN)] = None
    limit: Annotated[int | None, flags.LIMIT.but(panel=_IN)] = None
    temp: Annotated[float | None, answer_flags.TEMP.but(shown="0", panel=_IN)] = None
    top_p: Annotated[float | None, answer_flags.TOP_P.but(shown="0.95", panel=_IN)] = None
    seed: Annotated[
        int | None, answer_flags.SEED.but(help="Seed of the first prompt; others follow.", shown="0", panel=_IN)
    ] = None
    cold: Annotated[bool, flags.COLD.but(panel=_IN)] = False
    raw: Annotated[bool, flags.RAW.but(panel=_IN)] = False
    plot: Annotated[Path | None, flags.PLOT.but(panel=_IN)] = None

    def given(self) -> list[str]:
        """Return the flags that were given, except ``--prompts``."""
        named = {
            "--limit": self.limit,
            "--spec": self.spec,
            "--draft-max": self.draft_max,
            "--corpus": self.corpus,
            "--drafter": self.drafter,
            "--max-tokens": self.max_tokens,
            "--temp": self.temp,
            "--top-p": self.top_p,
            "--seed": self.seed,
            "--cold": self.cold or None,
            "--raw": self.raw or None,
            "--plot": self.plot,
        }
        return [name for name, value in named.items() if value is not None]

    def config(self) -> GenerationConfig:
        """Return the options of generation; greedy unless a flag says otherwise."""
        # All sampling options are set, so that models with and without recommended sampling can be compared.
        return GenerationConfig(
            max_tokens=DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens,
            temperature=0.0 if self.temp is None else self.temp,
            top_k=0,
            top_p=0.95 if self.top_p is None else self.top_p,
            min_p=0.0,
            repetition_penalty=1.0,
            repetition_guard=False,
            seed=0 if self.seed is None else self.seed,
        )

    def placed(self, places: PlaceFlags) -> PromptFlags:
        """Return the flags with packages that draft named by their folders; see ``place_spec``."""
        spec = None if self.spec is None else place_spec(self.spec, places)
        return replace(self, spec=spec, drafter=place_drafter(self.drafter, self.spec, places))

    @property
    def mode(self) -> str:
        """The mode of speculation."""
        return self.spec or AUTO

    def speculation(self) -> SpeculationFlags:
        """Return the speculation flags for the load."""
        return SpeculationFlags(spec=self.spec, draft_max=self.draft_max, corpus=self.corpus, drafter=self.drafter)

    def read(self) -> list[Prompt]:
        """Return the prompts to measure, after all checks that are possible before a model is loaded."""
        from edge_rt.measure.prompts import read_prompts

        assert self.prompts is not None
        self.speculation().check_planned()
        self.config()
        if self.plot is not None:
            from edge_rt.cli.render.plots import require_plot

            require_plot(self.plot)
        return read_prompts(self.prompts)[: self.limit]


def measure(terminal: Terminal, model: Model, prompts: list[Prompt], asked: PromptFlags) -> dict[str, Any]:
    """Measure the prompts and return all figures as a JSON object."""
    from edge_rt.measure.prompts import LeftOut
    from edge_rt.measure.speculation_benchmark import measure_prompts, report

    line = StatusLine(terminal, len(prompts))
    config = asked.config()
    in_force = model.speculation.resolve(asked.mode, has_reference=asked.mode == "reference")
    warn_of_profile(terminal, model, asked.mode, given=f"--spec {asked.mode}")
    if in_force != asked.mode:
        unused = [flag for flag in asked.given() if flag in ("--draft-max", "--corpus", "--drafter")]
        is_possible = model.speculation.drafts is not Drafts.NOTHING
        terminal.warn(
            f"speculation is off ({asked.mode}, op profile {model.package.manifest.op_profile}): plain decoding is "
            "compared with itself"
            + ("; choose a drafter with --spec." if is_possible else ".")
            + (f" Not used: {', '.join(unused)}." if unused else "")
        )

    samples: list[Sample] = []
    left_out: list[LeftOut] = []
    work = functools.partial(measure_prompts, model, prompts, config, asked.mode, cold=asked.cold, raw=asked.raw)
    try:
        for done, item in enumerate(each_in_background(lambda token: work(cancel=token)), start=1):
            if isinstance(item, LeftOut):
                left_out.append(item)
            else:
                samples.append(item)
            line.show(done, "prompts")
    finally:
        line.clear()
    if not samples:
        worst = left_out[0]
        most = model.package.manifest.model.context_length
        raise ContextOverflow(worst.prompt_tokens, worst.requested_tokens, worst.context_tokens, model_tokens=most)
    facts = {
        "spec": asked.mode,
        "tables": "cold" if asked.cold else "warm",
        "max_tokens": config.max_tokens,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "seed": config.seed,
        "raw": asked.raw,
        "draft_max": asked.draft_max,
        "corpus": None if asked.corpus is None else str(asked.corpus),
        "drafter": None if model.drafter is None else model.drafter.info.name,
        "spec_in_force": in_force,
    }
    return {**report(samples, left_out), **facts}


def spec_name(document: dict[str, Any]) -> str:
    """Return the displayed name of what was compared with plain decoding."""
    asked, in_force = document["spec"], document["spec_in_force"]
    if in_force != "off":
        return f"speculation {asked}"
    return "plain against plain" + ("" if asked == "off" else f" (speculation {asked} is off)")


def print_figures(terminal: Terminal, document: dict[str, Any]) -> None:
    """Write the figures as a table, with a summary."""
    header = ("prompts of", "n", "tokens", "speed-up", "95 %", "with prefill", "tok/step", "accepted", "tok/s", "plain")
    groups = {
        "all": document,
        **document["by_category"],
        "least repetitive half": document["least_repetitive_half"],
    }
    rows = [(name, *_cells(figures)) for name, figures in groups.items()]
    markdown(terminal, [header, *rows], right=range(1, len(header)))
    terminal.line()
    greedy = "greedy" if document["temperature"] == 0 else f"temperature {document['temperature']}"
    terminal.line(
        f"{spec_name(document)}, {greedy}, tables {document['tables']}; mean of the prompts' own speed-ups "
        f"{_text(document['speedup_mean'])}; drafting {_percent(document['drafting_share'])} of the time; "
        f"repeated 4-grams {_percent(document['repetition'])}, in the least repetitive half "
        f"{_percent(document['least_repetitive_half']['repetition'])}"
    )
    shares = visible_shares(document["accepted_per_position"])
    if steps := ", ".join(f"{index}: {share:.0%}" for index, share in enumerate(shares, start=1)):
        terminal.line(f"steps that accepted at least so many drafted tokens: {steps}")
    if (few := document["least_repetitive_half"]["prompts"]) < FEW_PROMPTS:
        terminal.line(f"the least repetitive half has only {few} prompt{'s'[: few != 1]}: too few to rely on")


def _cells(figures: dict[str, Any]) -> tuple[str, ...]:
    interval = figures["speedup_interval"]
    return (
        str(figures["prompts"]),
        str(figures["tokens"]),
        _text(figures["speedup"]),
        "-" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}",
        _text(figures["speedup_with_prefill"]),
        _text(figures["tokens_per_step"]),
        _percent(figures["acceptance"]),
        _text(figures["tok_s"], 1),
        _text(figures["tok_s_plain"], 1),
    )


def _text(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
