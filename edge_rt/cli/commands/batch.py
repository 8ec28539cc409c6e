"""``edge-rt batch``: a file of prompts in, a file of answers out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from edge_rt.cli.batch_lines import STARTS, Line, read_key, read_lines
from edge_rt.cli.interrupt import SignalReceived, each_in_background
from edge_rt.cli.loading import load_model, obtain_package, tell_device, telling_load
from edge_rt.cli.notices import warn_of_limits
from edge_rt.cli.options import flags
from edge_rt.cli.options.generation import GuardFlags, SamplingFlags
from edge_rt.cli.options.groups import LoadFlags, OutputFlags, PlaceFlags, SpeculationFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal, number
from edge_rt.cli.render.progress import StatusLine, about_seconds
from edge_rt.errors import ConfigError, EdgeRTError, InputError
from edge_rt.measure.kept_lines import LineFile
from edge_rt.runtime.forward.cancel import CancelToken

if TYPE_CHECKING:
    from edge_rt.runtime.config import GenerationConfig
    from edge_rt.runtime.many import Answer
    from edge_rt.runtime.model import Model


@dataclass(frozen=True)
class FileFlags:
    """Which prompts, where their answers go, and how many are computed at once."""

    prompts: Annotated[Path, flags.BATCH_PROMPTS]
    answers: Annotated[Path, flags.BATCH_ANSWERS]
    slots: Annotated[int, flags.SLOTS.but(shown="4")] = 4
    raw: Annotated[bool, flags.RAW] = False

    def check(self) -> None:
        """Refuse one file for both."""
        with suppress(OSError):
            if self.prompts.expanduser().samefile(self.answers.expanduser()):
                raise ConfigError(
                    "Prompts and answers are the same file.", f"Both are {self.prompts}.", "Name another file."
                )


def batch(
    files: FileFlags,
    load: LoadFlags,
    sampling: SamplingFlags,
    guard: GuardFlags,
    speculation: Annotated[SpeculationFlags, only("spec", "draft_max", "corpus", "drafter")],
    output: OutputFlags,
    places: PlaceFlags,
) -> int:
    """Answer every prompt of a file of JSON lines, several at once; what was answered before is not answered again."""
    terminal = output.terminal()
    config = sampling.config().with_options(repetition_guard=not guard.no_repetition_guard)
    files.check()
    speculation.check()
    source = files.prompts.expanduser()
    if next(read_lines(source), None) is None:
        raise InputError(f"{files.prompts} holds no prompt.", "Every line is empty.", "Write JSON lines.")
    with LineFile(files.answers) as out:
        kept = _kept(out, files.answers)
        count, has_format = Count(), False
        for line in read_lines(source):
            count.find(kept.get(line.key))
            has_format = has_format or (line.has_format and line.key not in kept)
        if count.done:
            terminal.note(f"{count.done} of {count.total} lines are answered already", "dim")
        if count.done < count.total:
            asked = load.options(places, speculation).but(slots=files.slots, formats=has_format)
            _, package = obtain_package(terminal, load.reference, places, budget=load.budget_bytes(places))
            model = load_model(package, telling_load(terminal, asked))
            tell_device(terminal, model.device_choice)
            warn_of_limits(terminal, model, asked, config)
            if model.slots < files.slots:
                terminal.warn("; ".join(text for text in model.plan.given_up if text.startswith("slots")))
            lines = (line for line in read_lines(source) if line.key not in kept)
            _run(terminal, model, lines, config, out, count, raw=files.raw)
    if output.json:
        terminal.document(count.to_json())
    else:
        terminal.line(count.text)
    return InputError.exit_code if count.failed else 0


def _kept(out: LineFile, path: Path) -> dict[str | int, bool]:
    """Return which lines are answered, and whether each has an error; an answer that was cut off is dropped."""
    kept = {}
    for count, data in enumerate(out.lines(), start=1):
        if (found := read_key(data)) is None:
            raise _no_answers(path, f"Line {count} is no answer.")
        kept[found[0]] = found[1]
    if not kept and out.cut and not any(out.cut.startswith(start[: len(out.cut)]) for start in STARTS):
        raise _no_answers(path, "Its first line does not end.")
    out.drop_cut()
    return kept


def _no_answers(path: Path, why: str) -> InputError:
    return InputError(f"{path} is no file of answers.", why, "Name another file, or one that does not exist.")


class Count:
    """How far the lines are.

    Attributes:
        total: lines of the file.
        done: those with an answer or an error, of earlier runs, too.
        failed: those with an error.
        tokens: tokens that this run has generated.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = self.done = self.failed = self.tokens = 0
        self._clock, self._begun, self._seconds, self._added = clock, clock(), 0.0, 0

    def find(self, has_error: bool | None) -> None:
        """Count a line of the file.

        Args:
            has_error: whether what an earlier run has of it is an error; None: it has nothing.
        """
        self.total += 1
        self.done += has_error is not None
        self.failed += has_error is True

    def begin(self) -> None:
        """Count time from now on."""
        self._begun = self._clock()

    def add(self, answer: Answer) -> None:
        """Count an answer or an error."""
        self._seconds = self._clock() - self._begun
        self.done += 1
        self._added += 1
        if isinstance(answer, EdgeRTError):
            self.failed += 1
        else:
            self.tokens += answer.usage.completion_tokens

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self._seconds if self._seconds else 0.0

    @property
    def progress(self) -> str:
        """What is shown behind the number of lines."""
        left = self._seconds * (self.total - self.done) / max(self._added, 1)
        time_left = f", {about_seconds(left)} left" if round(left) else ""
        return f"lines, {self.rate:.1f} tokens/s{time_left}"

    @property
    def text(self) -> str:
        """The whole run in a line."""
        speed = f"; {number(self.tokens)} tokens, {self.rate:.1f} tokens/s" if self.tokens else ""
        return f"{number(self.done)} of {number(self.total)} lines, {number(self.failed)} with an error{speed}"

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        counts = {"lines": self.total, "done": self.done, "failed": self.failed, "tokens": self.tokens}
        return {**counts, "seconds": self._seconds, "tokens_per_second": self.rate}


def _run(
    terminal: Terminal,
    model: Model,
    lines: Iterable[Line],
    config: GenerationConfig,
    out: LineFile,
    count: Count,
    *,
    raw: bool,
) -> None:
    status = StatusLine(terminal, count.total)
    name = str(model.package.manifest.model.name)
    is_raw = raw or model.template_source is None
    count.begin()
    try:
        for line, answer in each_in_background(lambda token: _answers(model, lines, config, token, raw=is_raw)):
            out.add(line.failure(answer) if isinstance(answer, EdgeRTError) else line.answer(answer, name))
            count.add(answer)
            status.show(count.done, count.progress)
    except SignalReceived:
        status.clear()
        terminal.note("What is answered is saved: the same command continues from there")
        raise
    status.clear()


def _answers(
    model: Model, lines: Iterable[Line], config: GenerationConfig, token: CancelToken, *, raw: bool
) -> Generator[tuple[Line, Answer]]:
    """Yield every line with its answer, as they come."""
    asked: dict[int, Line] = {}
    refused: deque[tuple[Line, EdgeRTError]] = deque()

    def prompts() -> Generator[tuple[Any, dict[str, Any]]]:
        index = 0
        for line in lines:
            try:
                prompt = line.asked(raw=raw)
            except EdgeRTError as error:
                refused.append((line, error))
                continue
            asked[index] = line
            index += 1
            yield prompt

    for index, answer in model.generate_many(prompts(), config, ordered=False, cancel=token):
        while refused:
            yield refused.popleft()
        yield asked.pop(index), answer
    yield from refused
