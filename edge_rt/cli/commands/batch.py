"""``edge-rt batch``: a file of prompts in, a file of answers out."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from edge_rt.cli.batch_lines import START, Answered, Basis, Line, digest, read_answer, read_lines
from edge_rt.cli.interrupt import SignalReceived, each_in_background
from edge_rt.cli.loading import model_of_command, obtain_package
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
from edge_rt.system.files import storage_errors

if TYPE_CHECKING:
    from edge_rt.runtime.config import GenerationConfig
    from edge_rt.runtime.many import Answer
    from edge_rt.runtime.model import Model


STANDARD: Final = Path("-")
"""Standard input or output in place of a file."""


@dataclass(frozen=True)
class FileFlags:
    """Which prompts, where their answers go, and how many are computed at once."""

    prompts: Annotated[Path, flags.BATCH_PROMPTS]
    answers: Annotated[Path, flags.BATCH_ANSWERS]
    slots: Annotated[int, flags.SLOTS.but(shown="4")] = 4
    kv_rows: Annotated[int | None, flags.KV_ROWS] = None
    raw: Annotated[bool, flags.RAW] = False

    def check(self, output: OutputFlags) -> None:
        """Refuse one file for both, and two documents on standard output."""
        if self.is_to_stdout and output.json:
            raise ConfigError(
                "Answers and --json both go to standard output.", "OUT is '-'.", "Leave one out, or name a file."
            )
        with suppress(OSError):
            if self.prompts.expanduser().samefile(self.answers.expanduser()):
                raise ConfigError(
                    "Prompts and answers are the same file.", f"Both are {self.prompts}.", "Name another file."
                )

    @property
    def is_to_stdout(self) -> bool:
        """Whether answers go to standard output."""
        return self.answers == STANDARD

    @contextmanager
    def source(self) -> Generator[Path]:
        """Yield the file of prompts; it is read several times, so what comes from standard input is kept meanwhile."""
        if self.prompts != STANDARD:
            yield self.prompts.expanduser()
            return
        if sys.stdin is None or sys.stdin.isatty():
            raise InputError("There are no prompts.", "Nothing is piped to standard input.", "Name a file.")
        with tempfile.TemporaryDirectory(prefix="edge-rt-") as folder:
            path = Path(folder) / "prompts.jsonl"
            with storage_errors(path, "cannot be written"), path.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            yield path


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
    files.check(output)
    speculation.check()
    with files.source() as source, ExitStack() as opened:
        if next(read_lines(source), None) is None:
            name = "Standard input" if files.prompts == STANDARD else files.prompts
            raise InputError(f"{name} holds no prompt.", "Every line is empty.", "Write JSON lines.")
        out = None if files.is_to_stdout else opened.enter_context(LineFile(files.answers))
        kept = {} if out is None else _kept(out, files.answers)
        count, has_format = Count(), False
        for line in read_lines(source):
            count.find(_checked(line, kept, files))
            has_format = has_format or (line.has_format and line.key not in kept)
        if count.done < len(kept):
            raise _mixed(files, f"Of its answers {len(kept) - count.done} belong to no line of {files.prompts}.")
        options = digest([vars(config), files.raw])
        if any(answered.basis.options != options for answered in kept.values()):
            raise _mixed(files, "The command had other options for generating.")
        if count.done:
            terminal.note(f"{count.done} of {count.total} lines are answered already", "dim")
        if count.done < count.total:
            asked = load.options(places, speculation, answers=True)
            asked = asked.but(slots=files.slots, kv_rows=files.kv_rows, formats=has_format)
            _, package = obtain_package(terminal, load.reference, places, budget=load.budget_bytes(places))
            model = opened.enter_context(model_of_command(terminal, package, asked))
            warn_of_limits(terminal, model, asked, config)
            if less := [text for text in model.plan.given_up if text.startswith(("slots", "rows"))]:
                terminal.warn("; ".join(less))
            is_raw = files.raw or model.template_source is None
            basis = Basis(_model_digest(model), options)
            if any(answered.basis.model != basis.model for answered in kept.values()):
                raise _mixed(files, "They are of another model, or of another format of its KV cache.")
            lines = (line for line in read_lines(source) if line.key not in kept)

            def add(document: dict[str, Any]) -> None:
                if out is None:
                    terminal.document(document, indent=None)
                else:
                    out.add(document)

            try:
                _run(terminal, model, lines, config, basis, add, count, raw=is_raw)
            except SignalReceived:
                if out is not None:
                    terminal.note("What is answered is saved: the same command continues from there")
                raise
    if output.json:
        terminal.document(count.to_json())
    elif files.is_to_stdout:
        terminal.note(count.text)
    else:
        terminal.line(count.text)
    return InputError.exit_code if count.failed else 0


def _kept(out: LineFile, path: Path) -> dict[str | int, Answered]:
    """Return the lines that are answered; an answer that was cut off is dropped."""
    kept = {}
    for count, data in enumerate(out.lines(), start=1):
        if (answered := read_answer(data)) is None:
            raise _no_answers(path, f"Line {count} is no answer.")
        kept[answered.key] = answered
    if not kept and out.cut and not out.cut.startswith(START[: len(out.cut)]):
        raise _no_answers(path, "Its first line does not end.")
    out.drop_cut()
    return kept


def _checked(line: Line, kept: Mapping[str | int, Answered], files: FileFlags) -> Answered | None:
    """Return the answer that a line has; refuse one to what the line said before."""
    answered = kept.get(line.key)
    if answered is not None and answered.digest != line.digest:
        name = f"line {line.number}" if line.custom_id is None else repr(line.custom_id)[:80]
        raise _mixed(files, f"What {name} of {files.prompts} says was another thing when it was answered.")
    return answered


def _model_digest(model: Model) -> str:
    """Return what stands for a model, and for what else of it changes texts."""
    facts = model.describe()
    own = [facts[name] for name in ("package_id", "kv_format", "rotation")]
    if facts["op_profile"] != "native":
        own.append(str(model.device_choice.device))
    return digest(own)


def _mixed(files: FileFlags, why: str) -> ConfigError:
    return ConfigError(
        f"{files.answers} has answers that do not go with new ones.",
        why,
        "Give what it was begun with, remove those answers, or name another file.",
    )


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

    def find(self, answered: Answered | None) -> None:
        """Count a line of the file, and what an earlier run has of it."""
        self.total += 1
        if answered is not None:
            self.done += 1
            self.failed += answered.has_error

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
    basis: Basis,
    add: Callable[[dict[str, Any]], None],
    count: Count,
    *,
    raw: bool,
) -> None:
    status = StatusLine(terminal, count.total)
    name = str(model.package.manifest.model.name)
    count.begin()
    try:
        for line, answer in each_in_background(lambda token: _answers(model, lines, config, token, raw=raw)):
            if isinstance(answer, EdgeRTError):
                add(line.failure(answer, basis))
            else:
                add(line.answer(answer, name, basis))
            count.add(answer)
            status.show(count.done, count.progress)
    finally:
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
