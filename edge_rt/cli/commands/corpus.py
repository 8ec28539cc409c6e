"""``edge-rt corpus``: texts that drafts are looked up in, indexed once and kept on disk."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edge_rt.cli.loading import obtain_package
from edge_rt.cli.options import flags, making_flags
from edge_rt.cli.options.groups import LoadFlags, OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.options.typer_commands import PlainCommand, PlainGroup, typer_command
from edge_rt.cli.overview import COMMANDS
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.stats import facts_lines
from edge_rt.errors import ConfigError
from edge_rt.system.byte_size import counted
from edge_rt.system.files import read_text

if TYPE_CHECKING:
    from edge_rt.runtime.speculation.corpus import CorpusInfo
    from edge_rt.text.tokenizer import Tokenizer

MAX_TEXT_BYTES: Final = 1 << 30

corpus_app = typer.Typer(
    rich_markup_mode="rich",
    cls=PlainGroup,
    no_args_is_help=True,
    help=COMMANDS["corpus"].summary,
)


@dataclass(frozen=True)
class BuildFlags:
    """The texts to index, and the file of the index."""

    texts: Annotated[list[Path], flags.TEXTS_ARGUMENT]
    out: Annotated[Path, making_flags.OUT.but(help="File to create.", metavar="FILE")]
    force: Annotated[bool, flags.FORCE.but(help="Replace FILE.")] = False


@dataclass(frozen=True)
class IndexFlags:
    """An existing index."""

    file: Annotated[Path, flags.CORPUS_ARGUMENT]


@corpus_app.command(cls=PlainCommand)
@typer_command
def build(
    wanted: BuildFlags,
    load: Annotated[LoadFlags, only("model")],
    output: OutputFlags,
    places: PlaceFlags,
) -> int:
    """Tokenise texts with a model's tokenizer and write their index: 8 bytes per token."""
    terminal, out = output.terminal(), wanted.out
    if any(_is_same(text, out) for text in wanted.texts):
        raise ConfigError(f"{out} is one of the texts.", "The index would replace it.", "Choose another name for it.")
    if out.exists() and not wanted.force:
        raise ConfigError(f"{out} exists.", "Nothing was read.", "Choose another name, or add --force.")
    for path in wanted.texts:
        read_text(path, MAX_TEXT_BYTES)  # what cannot be read is said before a model is fetched
    name, package = obtain_package(terminal, load.reference, places, budget=load.budget_bytes(places))

    from edge_rt.runtime.speculation.corpus_build import build_corpus
    from edge_rt.text.tokenizer import Tokenizer

    manifest = package.manifest
    facts = manifest.tokenizer
    tokenizer = Tokenizer.from_file(package.file(facts.file), info=facts, embedding_rows=manifest.model.vocab_size)
    info = build_corpus(
        _encoded(terminal, wanted.texts, tokenizer),
        out,
        vocab_size=manifest.model.vocab_size,
        tokenizer_sha256=manifest.files[facts.file].sha256,
        force=wanted.force,
    )
    _show(terminal, {"model": name, **_facts(out, info)})
    return 0


@corpus_app.command(cls=PlainCommand)
@typer_command
def info(index: IndexFlags, output: OutputFlags) -> int:
    """Check every byte of an index, and show its contents."""
    from edge_rt.runtime.speculation.corpus import Corpus

    terminal = output.terminal()
    with Corpus.open(index.file) as corpus:
        document = _facts(index.file, corpus.info)
    _show(terminal, document)
    return 0


def _is_same(text: Path, out: Path) -> bool:
    """Return whether two paths are the same file."""
    try:
        return text.samefile(out)
    except OSError:
        return False


def _encoded(terminal: Terminal, texts: list[Path], tokenizer: Tokenizer) -> Generator[list[int]]:
    from edge_rt.runtime.speculation.corpus_build import pieces

    for path in texts:
        ids: list[int] = []
        for piece in pieces(read_text(path, MAX_TEXT_BYTES)):
            ids += tokenizer.encode_text(piece)
        terminal.note(f"{path}: {counted(len(ids), 'token')}", "dim")
        yield ids


def _facts(path: Path, info: CorpusInfo) -> dict[str, Any]:
    return {
        "path": str(path),
        "size_bytes": info.size_bytes,
        "texts": info.num_texts,
        "tokens": info.num_tokens,
        "places": info.num_places,
        "vocab_size": info.vocab_size,
        "tokenizer_sha256": info.tokenizer_sha256,
    }


def _show(terminal: Terminal, document: dict[str, Any]) -> None:
    if terminal.is_json:
        terminal.document(document)
    else:
        terminal.table(facts_lines(document))
