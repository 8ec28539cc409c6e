"""``edge-rt embed``: embeddings of texts, one JSON line for each."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from edge_rt.cli.interrupt import each_in_background
from edge_rt.cli.loading import model_of_command, obtain_package
from edge_rt.cli.options import flags
from edge_rt.cli.options.groups import LoadFlags, OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only, path_of
from edge_rt.errors import ConfigError, StorageError
from edge_rt.runtime.forward.cancel import CancelToken

if TYPE_CHECKING:
    from edge_rt.runtime.embedding import Array
    from edge_rt.runtime.model import Model

TOGETHER: Final = 256
"""Texts whose embeddings are written at once."""
USUAL_SLOTS: Final = 4


@dataclass(frozen=True)
class EmbeddedFlags:
    """Which texts, and how their embeddings are made."""

    text: Annotated[str | None, flags.EMBEDDED_TEXT] = None
    lines: Annotated[Path | None, flags.LINES] = None
    prompt_name: Annotated[str | None, flags.PROMPT_NAME] = None
    truncate: Annotated[bool, flags.TRUNCATE] = False
    slots: Annotated[int, flags.SLOTS.but(help="Texts that are computed at once.")] = USUAL_SLOTS

    def texts(self) -> Iterator[str]:
        """Yield the texts: that of the argument, the lines of a file, or those of standard input."""
        if self.text is not None and self.lines is not None:
            raise ConfigError("There are two sources of text.", "A text and --lines were given.", "Leave one out.")
        if self.text is not None:
            yield self.text
            return
        if self.lines is not None:
            path = path_of(str(self.lines))
            try:
                with path.open(encoding="utf-8") as file:
                    yield from _read(file, str(path))
            except OSError as error:
                raise StorageError(f"{path} cannot be read.", f"{error.strerror}.", "Check its path.") from error
            return
        if sys.stdin is None or sys.stdin.isatty():
            raise ConfigError("There is no text.", "Standard input is a terminal.", "Give a text, --lines, or a pipe.")
        yield from _read(sys.stdin, "standard input")


def _read(lines: Iterable[str], where: str) -> Iterator[str]:
    try:
        for line in lines:
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where} is not UTF-8 text.", f"Byte {error.start}: {error.reason}.", "Convert it first, such as by iconv."
        ) from error


def embed(
    wanted: EmbeddedFlags,
    load: Annotated[
        LoadFlags, only("model", "memory", "device_memory", "experts", "ctx", "threads", "device", "kv_type", "isa")
    ],
    output: OutputFlags,
    places: PlaceFlags,
) -> int:
    """Make embeddings of texts, one a line, with a model that is made for them; one JSON line for each."""
    from edge_rt.runtime.embedding import require_pooling

    terminal, texts = output.terminal(), wanted.texts()
    # A text that is missing is told before a model is fetched.
    first = list(itertools.islice(texts, 1))
    budget = load.budget_bytes(places)
    _, package = obtain_package(terminal, load.reference, places, budget=budget)
    require_pooling(package.manifest)
    asked = load.options(places).but(spec="off", slots=wanted.slots)
    with model_of_command(terminal, package, asked) as model:
        vectors: list[list[float]] = []
        number = 0
        for found in each_in_background(lambda token: _groups(model, itertools.chain(first, texts), wanted, token)):
            for vector in found:
                values = [float(f"{value:.9g}") for value in vector.tolist()]
                if output.json:
                    vectors.append(values)
                else:
                    terminal.line(json.dumps({"index": number, "embedding": values}))
                number += 1
        if output.json:
            size = package.manifest.model.hidden_size
            terminal.document({"model": package.manifest.model.name, "dimensions": size, "embeddings": vectors})
    return 0


def _groups(
    model: Model, texts: Iterator[str], wanted: EmbeddedFlags, token: CancelToken
) -> Generator[Sequence[Array]]:
    """Yield embeddings in the order of their texts, some hundred at a time."""
    while group := list(itertools.islice(texts, TOGETHER)):
        yield list(model.embed(group, prompt=wanted.prompt_name, truncate=wanted.truncate, cancel=token))
