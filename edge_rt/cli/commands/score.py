"""``edge-rt score``: how likely a model finds a text, or every text of a file."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from edge_rt.cli.commands.generate import read_prompt
from edge_rt.cli.interrupt import SignalReceived, each_in_background
from edge_rt.cli.loading import model_of_command, obtain_package
from edge_rt.cli.options import flags
from edge_rt.cli.options.groups import ModelFlags, OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal, number
from edge_rt.cli.render.progress import LINE_SECONDS, StatusLine
from edge_rt.errors import ConfigError
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.version import VERSION

if TYPE_CHECKING:
    from edge_rt.measure.kept_lines import KeptLines
    from edge_rt.measure.prompts import Prompt
    from edge_rt.runtime.decode.scoring import Score
    from edge_rt.runtime.model import Model


@dataclass(frozen=True)
class ScoredFlags:
    """Which texts, and where their scores are kept."""

    text: Annotated[str | None, flags.SCORED_TEXT] = None
    texts: Annotated[Path | None, flags.TEXTS] = None
    limit: Annotated[int | None, flags.LIMIT.but(help="Take only the first N texts.")] = None
    state: Annotated[
        Path | None,
        flags.STATE.but(help="With --texts: keep finished scores in FILE, and continue from those it holds."),
    ] = None

    def check(self) -> None:
        """Refuse flags that contradict each other."""
        if self.texts is not None and self.text is not None:
            raise ConfigError("There are two sources of text.", "A text and --texts were given.", "Leave one out.")
        if self.texts is None and (self.state is not None or self.limit is not None):
            raise ConfigError("--state and --limit are for many texts.", "There is no --texts.", "Give --texts FILE.")


def score(
    scored: ScoredFlags,
    load: Annotated[
        ModelFlags, only("model", "memory", "device_memory", "experts", "ctx", "threads", "device", "kv_type", "isa")
    ],
    output: OutputFlags,
    places: PlaceFlags,
) -> int:
    """Say how likely a model finds a text, or every text of a file."""
    terminal = output.terminal()
    scored.check()
    texts = _texts(scored, terminal)
    budget = load.budget_bytes(places)
    # A plan has rows of logits for drafts: those of a text are computed as many at once.
    asked = load.options(places).but(spec="off" if budget is None else "suffix")
    _, package = obtain_package(terminal, load.reference, places, budget=budget)
    with model_of_command(terminal, package, asked) as model:
        if scored.texts is None:
            progress = ScoreProgress(terminal, 1)
            [found] = each_in_background(lambda token: _scores(model, texts, token, progress))
            progress.clear()
            assert found[1] is not None, "one text alone"
            document = found[1].to_json()
            if output.json:
                terminal.document(document)
            else:
                terminal.line(_line(document["tokens"], document["log_probability"]))
            return 0
        if scored.state is None:
            lines = _run(terminal, model, texts, None)
        else:
            from edge_rt.measure.kept_lines import KeptLines

            header = {
                "edge_rt": VERSION,
                "package_id": package.id,
                "ctx": model.context_tokens,
                "kv": model.describe()["kv_format"],
                "device": str(asked.device_name),
            }
            form = ("edge-rt score", 1)
            with KeptLines(scored.state, header, form=form, work="scoring", part="a score", read=_read_line) as kept:
                lines = _run(terminal, model, texts, kept)
        _tell(terminal, lines, is_json=output.json)
    return 0


def _texts(scored: ScoredFlags, terminal: Terminal) -> list[Prompt]:
    from edge_rt.measure.prompts import Prompt, read_prompts

    if scored.texts is None:
        return [Prompt(0, scored.text if scored.text is not None else read_prompt(None, terminal))]
    return read_prompts(scored.texts)[: scored.limit]


class ScoreProgress:
    """How far the scores are; also within a text that takes long."""

    def __init__(self, terminal: Terminal, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._status = StatusLine(terminal, total)
        self._clock = clock
        self._begun = clock()
        self._done = 0
        self.clear = self._status.clear

    def texts(self, done: int) -> None:
        """Show that so many texts are scored."""
        self._done, self._begun = done, self._clock()
        self._status.show(done, "texts")

    def tokens(self, done: int, total: int) -> None:
        """Show that so many tokens of the next text are scored."""
        if self._clock() - self._begun >= LINE_SECONDS:
            self._status.show(self._done, f"texts; {number(done)} of {number(total)} tokens of the next one")


def _scores(
    model: Model, texts: Sequence[Prompt], token: CancelToken, progress: ScoreProgress
) -> Generator[tuple[Prompt, Score | None]]:
    """Yield every text with its score; of many, those of a single token have none."""
    for text in texts:
        is_short = len(texts) > 1 and model.count_tokens(text.text) < 2
        yield text, None if is_short else model.score(text.text, cancel=token, on_progress=progress.tokens)


def _run(
    terminal: Terminal, model: Model, texts: Sequence[Prompt], kept: KeptLines[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """Return a line for every text; those that are kept are not computed again."""
    known = {line["sha256"]: line for line in (() if kept is None else kept.parts)}
    hashes = [hashlib.sha256(text.text.encode()).hexdigest() for text in texts]
    # A text that occurs twice is computed once.
    missing = [text for digest, text in dict(zip(hashes, texts, strict=True)).items() if digest not in known]
    if known:
        terminal.note(f"{sum(digest in known for digest in hashes)} of {len(texts)} texts are scored already", "dim")
    progress = ScoreProgress(terminal, len(texts))
    try:
        for text, found in each_in_background(lambda token: _scores(model, missing, token, progress)):
            if found is None:
                terminal.warn(f"text {text.index + 1} is left out: it is too short for a score")
                continue
            line = {
                "sha256": hashes[text.index],
                "tokens": len(found.logprobs),
                "log_probability": found.log_probability,
                "perplexity": found.perplexity,
            }
            known[line["sha256"]] = line
            if kept is not None:
                kept.add(line)
            progress.texts(sum(digest in known for digest in hashes))
    except SignalReceived:
        progress.clear()
        if kept is not None:
            terminal.note("What is scored is saved: the same command continues from there")
        raise
    progress.clear()
    return [
        {"text": text.index, **known[digest]} for text, digest in zip(texts, hashes, strict=True) if digest in known
    ]


def _read_line(document: dict[str, Any]) -> dict[str, Any]:
    line = {name: document[name] for name in ("sha256", "tokens", "log_probability", "perplexity")}
    is_score = isinstance(line["sha256"], str) and type(line["tokens"]) is int and line["tokens"] > 0
    if not is_score or not all(isinstance(line[name], float) for name in ("log_probability", "perplexity")):
        raise ValueError("not a score")
    return line


def _line(tokens: int, log_probability: float) -> str:
    perplexity = math.exp(-log_probability / tokens)
    return f"{number(tokens)} tokens, log probability {log_probability:.4f}, perplexity {perplexity:.4f}"


def _tell(terminal: Terminal, lines: Sequence[dict[str, Any]], *, is_json: bool) -> None:
    if not lines:
        raise ConfigError("No text has a score.", "All are shorter than two tokens.", "Give longer texts.")
    tokens = sum(line["tokens"] for line in lines)
    total = math.fsum(line["log_probability"] for line in lines)
    if is_json:
        perplexity = math.exp(-total / tokens)
        whole = {"tokens": tokens, "log_probability": total, "perplexity": perplexity}
        terminal.document({**whole, "texts": lines})
        return
    for line in lines:
        terminal.line(f"text {line['text'] + 1}: {_line(line['tokens'], line['log_probability'])}")
    terminal.line(f"all: {_line(tokens, total)}")
