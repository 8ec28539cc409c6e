"""Texts for measurements of quality: windows of token ids, cut from prompts and from the model's own answers.

A window is computed in one pass. In windows of prompts every token's prediction counts, in windows of chats only those
of the answers' tokens: nobody predicts a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

PROMPTS = "prompts"
ANSWERS = "answers"


@dataclass(frozen=True)
class Window:
    """A stretch of text.

    Attributes:
        source: ``"prompts"`` or ``"answers"``.
        ids: its tokens.
        spans: ``[begin, end)`` of the tokens whose predictions count, ascending and at 1 or later.
    """

    source: str
    ids: list[int]
    spans: list[tuple[int, int]] = field(default_factory=list)

    def first(self, tokens: int) -> Window:
        """Return the window's beginning."""
        spans = [(begin, min(end, tokens)) for begin, end in self.spans if begin < tokens]
        return Window(self.source, self.ids[:tokens], spans)

    def counted(self) -> list[int]:
        """Return the indices of the tokens whose predictions count."""
        return [index for begin, end in self.spans for index in range(begin, end)]


def spread(count: int) -> list[int]:
    """Return 0 ... ``count`` - 1 so that neighbours come from all over a file that is sorted by category."""
    step = next(step for step in (37, 31, 29, 1) if count % step)
    return [(index * step) % count for index in range(count)]


def text_windows(ids: Sequence[int], length: int, tokens: int) -> list[Window]:
    """Cut one long text into whole windows of ``length`` tokens, until ``tokens`` of them count."""
    wanted = min(-(-tokens // (length - 1)), len(ids) // length)
    return [Window(PROMPTS, list(ids[at * length : (at + 1) * length]), [(1, length)]) for at in range(wanted)]


def chat_windows(chats: Iterable[tuple[Sequence[int], Sequence[int]]], length: int, tokens: int) -> list[Window]:
    """Pack whole chats, pairs of prompt and answer, into windows of at most ``length`` tokens.

    Args:
        chats: token ids; those that are longer than a window are left out.
        length: tokens of a window, at most.
        tokens: of answers, after which no more windows are begun.
    """
    windows: list[Window] = []
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    counted = 0
    for prompt, answer in chats:
        size = len(prompt) + len(answer)
        if not prompt or not answer or size > length:
            continue
        if len(ids) + size > length:
            windows.append(Window(ANSWERS, ids, spans))
            ids, spans = [], []
            if counted >= tokens:
                return windows
        spans = [*spans, (len(ids) + len(prompt), len(ids) + size)]
        ids = [*ids, *prompt, *answer]
        counted += len(answer)
    return [*windows, Window(ANSWERS, ids, spans)] if ids else windows


def cut(window: Window, rows: int, wanted: int) -> Iterator[tuple[int, int, list[int]]]:
    """Yield passes over a window: ``[begin, end)``, and its rows whose logits predict tokens that count.

    Args:
        window: the text.
        rows: of a pass, at most.
        wanted: rows with logits of a pass, at most.
    """
    predicting = {index - 1 for index in window.counted()}
    begin, here = 0, list[int]()
    for index in range(len(window.ids)):
        if index - begin == rows or (index in predicting and len(here) == wanted):
            yield begin, index, here
            begin, here = index, []
        if index in predicting:
            here.append(index)
    yield begin, len(window.ids), here


def read_turns(path: Path) -> list[list[str]]:
    """Return the user's messages of every entry of a file of JSON lines that hold ``turns``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    turns = [json.loads(line)["turns"] for line in lines if line.strip()]
    return [turns[index] for index in spread(len(turns))]


def write_windows(windows: Iterable[Window], path: Path) -> None:
    """Write windows as JSON lines."""
    path.write_text("".join(json.dumps(asdict(window)) + "\n" for window in windows), encoding="utf-8")


def read_windows(path: Path) -> list[Window]:
    """Read what ``write_windows`` wrote."""
    return list(_windows(path.read_text(encoding="utf-8").splitlines()))


def _windows(lines: Iterable[str]) -> Iterator[Window]:
    for line in lines:
        entry = json.loads(line)
        yield Window(entry["source"], entry["ids"], [(begin, end) for begin, end in entry["spans"]])
