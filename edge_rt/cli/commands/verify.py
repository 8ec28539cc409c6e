"""``edge-rt verify``: speculative answers against plain ones, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edge_rt.cli.baseline_memory import own_bytes
from edge_rt.cli.commands.verify_run import VerifyRun
from edge_rt.cli.loading import obtain_package
from edge_rt.cli.options import (
    ConfigOption,
    CtxOption,
    DeviceOption,
    IsaOption,
    JsonOption,
    MemoryOption,
    ModelFlags,
    ModelOption,
    NoColorOption,
    OfflineOption,
    QuietOption,
    StoreOption,
    ThreadsOption,
    VerboseOption,
    make_terminal,
)
from edge_rt.cli.render.verify_report import findings, print_findings, tell_left_out
from edge_rt.cli.speculation import CorpusOption, DraftMaxOption, SpecFlags, never_drafts
from edge_rt.errors import ConfigError
from edge_rt.runtime.config import GenerationConfig
from edge_rt.version import VERSION

if TYPE_CHECKING:
    from edge_rt.measure.prompts import Prompt
    from edge_rt.package.manifest import Manifest
    from edge_rt.text.tokenizer import Tokenizer

EXIT_DIFFERENT: Final = 1
_WHY_IDLE: Final = "it never drafts, as graphs return no likely tokens"

PromptsOption = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        metavar="FILE",
        help="JSON lines with 'turns' or 'prompt', or a text a line.",
        show_default="a few built-in ones",
    ),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Take the first N prompts.", show_default="all")
]
RawOption = Annotated[bool, typer.Option("--raw", help="Give prompts as they are, without the chat template.")]


def verify(
    model: ModelOption = None,
    prompts: PromptsOption = None,
    limit: LimitOption = None,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", metavar="N", min=1, help="Most tokens of an answer.")
    ] = 256,
    spec: Annotated[
        list[str] | None,
        typer.Option(
            "--spec",
            metavar="MODE",
            help="auto, ngram, suffix, recycling, or reference (copies from the prompt); repeatable.",
            show_default="all but reference",
        ),
    ] = None,
    kv_type: Annotated[
        list[str] | None,
        typer.Option(
            "--kv-type",
            "--kv",
            metavar="FORMAT",
            help="Format of the KV cache (see inspect); repeatable.",
            show_default="the package's first",
        ),
    ] = None,
    temp: Annotated[float, typer.Option("--temp", metavar="T", help="Temperature; 0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Keep the likeliest tokens up to this sum.")] = 0.95,
    top_k: Annotated[int, typer.Option("--top-k", help="Keep the k likeliest tokens; 0 keeps all.")] = 0,
    repeat_penalty: Annotated[
        float, typer.Option("--repeat-penalty", help="Penalty for tokens seen before; 1 is off.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Seed of the first prompt; others follow.")] = 0,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="FILE", help="Keep what is done there, and go on from what it holds."),
    ] = None,
    raw: RawOption = False,
    draft_max: DraftMaxOption = None,
    corpus: CorpusOption = None,
    memory: MemoryOption = None,
    ctx: CtxOption = None,
    threads: ThreadsOption = None,
    device: DeviceOption = "auto",
    isa: IsaOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_color: NoColorOption = False,
    offline: OfflineOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """Compare speculative answers with plain ones; exit code 0 if all are identical, 1 if one is not."""
    own = own_bytes()
    terminal = make_terminal(json=json, quiet=quiet, verbose=verbose, no_color=no_color)
    chosen = GenerationConfig(
        max_tokens=max_tokens,
        temperature=temp,
        top_p=top_p,
        top_k=top_k,
        min_p=0.0,
        repetition_penalty=repeat_penalty,
        seed=seed,
    )
    texts, all_hash = _prompts(prompts, limit)
    modes = _modes(spec)
    if corpus is not None and not {"auto", "suffix"}.intersection(modes):
        raise ConfigError(f"--corpus is not used with --spec {', '.join(modes)}.", "It is used with auto, suffix.", "")
    flags = ModelFlags(
        model,
        ctx,
        threads,
        device,
        store,
        config,
        offline,
        None,
        isa,
        SpecFlags(None, draft_max, corpus),
        memory,
        own_bytes=own,
    )
    _, path = obtain_package(terminal, flags)

    from edge_rt.package.reader import open_package

    package = open_package(path)
    manifest = package.manifest
    formats = _formats(kv_type, manifest)
    modes, idle = _drafting(modes, manifest.op_profile)
    if manifest.op_profile != "native":
        terminal.warn(
            f"nothing is promised in the op profile {manifest.op_profile}: its attention's results depend on the rows "
            "computed together, so answers may differ; auto drafts nothing there"
            + (f"; {', '.join(idle)} is left out: {_WHY_IDLE}" if idle else "")
        )
    header = {
        "edge_rt": VERSION,
        "package_id": package.id,
        "prompts": all_hash,
        "spec": modes,
        "kv": formats,
        "options": _sampling(chosen),
        "raw": raw,
        "draft_max": draft_max,
        "corpus": None if corpus is None else str(corpus),
        "ctx": ctx,
        "isa": isa,
    }
    run = VerifyRun(terminal, flags, path, texts, chosen, modes, formats, raw=raw)
    if state is None:
        found = run.execute(None)
    else:
        from edge_rt.measure.verify_state import VerifyState

        with VerifyState(state, header) as kept:
            found = run.execute(kept)
    document = findings(found, modes, formats, header, _tokenizer(path, manifest))
    if json:
        terminal.document(document)
    else:
        print_findings(terminal, document)
    tell_left_out(terminal, document)
    return 0 if document["identical"] == document["prompts"] else EXIT_DIFFERENT


def _prompts(path: Path | None, limit: int | None) -> tuple[list[Prompt], str]:
    """Return the prompts to take, and the hash of all that there are."""
    from edge_rt.measure.prompts import built_in_prompts, read_prompts, texts_hash

    found = built_in_prompts() if path is None else read_prompts(path)
    return found[:limit], texts_hash(found)


def _modes(given: Sequence[str] | None) -> list[str]:
    """Return the modes to verify.

    Raises:
        ConfigError: one is unknown, or there is nothing to compare with it.
    """
    from edge_rt.runtime.speculation.speculation import SPEC_MODES, require_mode

    modes = list(dict.fromkeys(given or [mode for mode in SPEC_MODES if mode not in ("off", "reference")]))
    for mode in modes:
        require_mode(mode)
    if "off" in modes:
        raise ConfigError("There is nothing to verify with --spec off.", "It is what others are compared with.", "")
    return modes


def _drafting(modes: Sequence[str], op_profile: str) -> tuple[list[str], list[str]]:
    """Return the modes to verify, and those left out because they never draft in this op profile.

    Raises:
        ConfigError: no other mode was asked for.
    """
    idle = [mode for mode in modes if never_drafts(mode, op_profile)]
    drafting = [mode for mode in modes if mode not in idle]
    if not drafting:
        raise ConfigError(
            f"There is nothing to verify with --spec {', '.join(idle)}.",
            f"In the op profile {op_profile} {_WHY_IDLE}.",
            "Choose another drafter, or a package of the op profile native.",
        )
    return drafting, idle


def _formats(given: Sequence[str] | None, manifest: Manifest) -> list[str]:
    """Return the cache formats to verify; a wrong one is refused before hours are spent on the others."""
    formats = list(dict.fromkeys(given or manifest.kv_formats[:1]))
    for name in formats:
        if name not in manifest.kv_formats:
            raise ConfigError(
                "The package has no such cache format.",
                f"Got {name!r:.40}; it has {', '.join(manifest.kv_formats)}.",
                "Choose one of them.",
            )
    return formats


def _tokenizer(path: Path, manifest: Manifest) -> Tokenizer:
    """Return the tokenizer of a package."""
    from edge_rt.text.tokenizer import Tokenizer

    return Tokenizer.from_file(
        path / manifest.tokenizer.file, info=manifest.tokenizer, embedding_rows=manifest.model.vocab_size
    )


def _sampling(config: GenerationConfig) -> dict[str, Any]:
    names = ("max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "seed")
    return {name: getattr(config, name) for name in names}
