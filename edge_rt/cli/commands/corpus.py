"""``edge-rt corpus``: texts that drafts may be guessed from, indexed once and kept on disk."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edge_rt.cli.loading import obtain_package
from edge_rt.cli.options import (
    ConfigOption,
    JsonOption,
    ModelFlags,
    ModelOption,
    NoColorOption,
    OfflineOption,
    QuietOption,
    StoreOption,
    VerboseOption,
    make_terminal,
)
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.stats import facts_lines
from edge_rt.errors import ConfigError
from edge_rt.text.text_file import read_text

if TYPE_CHECKING:
    from edge_rt.runtime.drafters.corpus_header import CorpusInfo
    from edge_rt.text.tokenizer import Tokenizer

MAX_TEXT_BYTES: Final = 1 << 30

corpus_app = typer.Typer(
    no_args_is_help=True, help="Texts that drafts may be guessed from: index them, and look at an index."
)


@corpus_app.command()
def build(
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT...", help="UTF-8 text files, each a text of its own.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="File to create.")],
    model: ModelOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_color: NoColorOption = False,
    offline: OfflineOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """Tokenise texts with a model's tokenizer and write their index: 8 bytes per token."""
    terminal = make_terminal(json=json, quiet=quiet, verbose=verbose, no_color=no_color)
    if any(_is_same(text, out) for text in texts):
        raise ConfigError(f"{out} is one of the texts.", "The index would replace it.", "Choose another name for it.")
    if out.exists() and not force:
        raise ConfigError(f"{out} exists.", "Nothing was read.", "Choose another name, or add --force.")
    flags = ModelFlags(model, store=store, config=config, offline=offline)
    name, folder = obtain_package(terminal, flags)

    from edge_rt.package.reader import open_package
    from edge_rt.runtime.drafters.corpus_build import build_corpus
    from edge_rt.text.tokenizer import Tokenizer

    manifest = open_package(folder).manifest
    facts = manifest.tokenizer
    tokenizer = Tokenizer.from_file(folder / facts.file, info=facts, embedding_rows=manifest.model.vocab_size)
    info = build_corpus(
        _encoded(terminal, texts, tokenizer),
        out,
        vocab_size=manifest.model.vocab_size,
        tokenizer_sha256=manifest.files[facts.file].sha256,
        force=force,
    )
    document = {"model": name, **_facts(out, info)}
    _show(terminal, document, as_json=json)
    return 0


@corpus_app.command()
def info(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What 'edge-rt corpus build' wrote.")],
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_color: NoColorOption = False,
) -> int:
    """Check an index, every byte of it, and show what it holds."""
    from edge_rt.runtime.drafters.corpus import Corpus

    terminal = make_terminal(json=json, quiet=quiet, verbose=verbose, no_color=no_color)
    with Corpus.open(file) as corpus:
        document = _facts(file, corpus.info)
    _show(terminal, document, as_json=json)
    return 0


def _is_same(text: Path, out: Path) -> bool:
    """Return whether two paths lead to one file."""
    try:
        return text.samefile(out)
    except OSError:
        return False


def _encoded(terminal: Terminal, texts: list[Path], tokenizer: Tokenizer) -> Generator[list[int]]:
    from edge_rt.runtime.drafters.corpus_build import pieces

    for path in texts:
        ids: list[int] = []
        for piece in pieces(read_text(path, MAX_TEXT_BYTES)):
            ids += tokenizer.encode_text(piece)
        terminal.note(f"{path}: {len(ids)} tokens", "dim")
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


def _show(terminal: Terminal, document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        terminal.document(document)
    else:
        terminal.table(facts_lines(document))
