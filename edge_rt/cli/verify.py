"""``edge-rt verify``: speculative answers against plain ones, token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_rt.cli.console import Terminal, number
from edge_rt.cli.interrupt import Background, SignalReceived
from edge_rt.cli.loading import load_model, obtain_package
from edge_rt.cli.options import (
    ConfigOption,
    CtxOption,
    DeviceOption,
    IsaOption,
    JsonOption,
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
from edge_rt.cli.speculation import CorpusOption, DraftMaxOption, SpecFlags
from edge_rt.cli.status_line import StatusLine
from edge_rt.errors import ConfigError, ContextOverflow
from edge_rt.runtime.cancel import CancelToken
from edge_rt.runtime.config import GenerationConfig
from edge_rt.version import VERSION

if TYPE_CHECKING:
    from edge_rt.cli.verify_state import VerifyState
    from edge_rt.package import Manifest
    from edge_rt.runtime.prompts import Prompt
    from edge_rt.runtime.verify import Answer
    from edge_rt.tokenizer import Tokenizer

EXIT_DIFFERENT = 1

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
            metavar="FORMAT",
            help="Format of the KV cache: f32, f16 or int8; repeatable.",
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
    terminal = make_terminal(json=json, quiet=quiet, verbose=verbose, no_color=no_color)
    chosen = GenerationConfig(
        max_tokens=max_tokens, temperature=temp, top_p=top_p, top_k=top_k, repetition_penalty=repeat_penalty, seed=seed
    )
    texts, all_hash = _prompts(prompts, limit)
    modes = _modes(spec)
    if corpus is not None and not {"auto", "suffix"}.intersection(modes):
        raise ConfigError(f"--corpus is not used with --spec {', '.join(modes)}.", "It is used with auto, suffix.", "")
    flags = ModelFlags(
        model, ctx, threads, device, store, config, offline, None, isa, SpecFlags("auto", draft_max, corpus)
    )
    _, path = obtain_package(terminal, flags)

    from edge_rt.package import open_package

    package = open_package(path)
    manifest = package.manifest
    formats = _formats(kv_type, manifest)
    if manifest.op_profile != "native":
        terminal.warn(
            f"nothing is promised in the op profile {manifest.op_profile}: its attention's results depend on the rows "
            "computed together, so answers may differ; auto drafts nothing there"
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
    run = _Run(terminal, flags, path, texts, chosen, modes, formats, raw=raw)
    if state is None:
        found = run.execute(None)
    else:
        from edge_rt.cli.verify_state import VerifyState

        with VerifyState(state, header) as kept:
            found = run.execute(kept)
    return _report(terminal, found, modes, formats, header, _tokenizer(path, manifest), json=json)


class _Run:
    """The prompts that are still to be done, cache format by cache format."""

    def __init__(
        self,
        terminal: Terminal,
        flags: ModelFlags,
        package: Path,
        prompts: Sequence[Prompt],
        config: GenerationConfig,
        modes: Sequence[str],
        formats: Sequence[str],
        *,
        raw: bool,
    ) -> None:
        self._terminal = terminal
        self._flags = flags
        self._package = package
        self._prompts = prompts
        self._config = config
        self._modes = modes
        self._formats = formats
        self._raw = raw
        self._found: dict[tuple[str, str, int], Answer] = {}
        self._different = 0

    def execute(self, state: VerifyState | None) -> list[Answer]:
        """Return all answers, those that the state held included: by cache format, mode and prompt.

        Raises:
            EdgeRTError: a generation failed, or the state could not be written.
            SignalReceived: a signal came; the state holds what was done.
        """
        modes = ("off", *self._modes)
        places = [(kv, mode, prompt.index) for kv in self._formats for mode in modes for prompt in self._prompts]
        wanted = set(places)
        for answer in state.answers if state is not None else ():
            # A smaller --limit than last time leaves some out.
            if (answer.kv, answer.mode, answer.prompt) in wanted:
                self._add(answer)
        if self._found:
            self._terminal.note(f"{len(self._found)} of {len(places)} answers are there already", "dim")
        line = StatusLine(self._terminal, len(places))

        def take(answer: Answer) -> None:
            if state is not None:
                state.append(answer)
            self._add(answer)
            line.show(len(self._found), f"answers ({answer.kv}, {answer.mode}), {self._different} different")

        try:
            for kv in self._formats:
                if any((kv, mode, prompt.index) not in self._found for mode in modes for prompt in self._prompts):
                    self._answer(kv, modes, take)
        except SignalReceived:
            line.clear()
            if state is not None:
                done = f"{len(self._found)} of {len(places)} answers"
                self._terminal.note(f"{done} are kept: the same command goes on from there")
            raise
        line.clear()
        return [self._found[place] for place in places]

    def _add(self, answer: Answer) -> None:
        from edge_rt.runtime.verify import PLAIN, first_difference

        self._found[answer.kv, answer.mode, answer.prompt] = answer
        plain = self._found.get((answer.kv, PLAIN, answer.prompt))
        if plain is not None and first_difference(plain.token_ids, answer.token_ids) is not None:
            self._different += 1

    def _answer(self, kv: str, modes: Sequence[str], take: Callable[[Answer], None]) -> None:
        """Give what is missing with one cache format."""
        token = CancelToken()
        pending = {mode: [p for p in self._prompts if (kv, mode, p.index) not in self._found] for mode in modes}
        with load_model(self._package, dataclasses.replace(self._flags, kv=kv)) as loaded:

            def work(emit: Callable[[Answer], None]) -> None:
                from edge_rt.runtime.verify import answers

                for mode, prompts in pending.items():
                    for answer in answers(loaded, prompts, self._config, mode, kv=kv, raw=self._raw, cancel=token):
                        emit(answer)

            try:
                # Answers are kept by this thread: the other one may be left behind in the middle of anything.
                background: Background[Answer, None] = Background(work)
                for answer in background:
                    take(answer)
            finally:
                token.cancel()


def _prompts(path: Path | None, limit: int | None) -> tuple[list[Prompt], str]:
    """Return the prompts to take, and the hash of all that there are."""
    from edge_rt.runtime.prompts import built_in_prompts, read_prompts, texts_hash

    found = built_in_prompts() if path is None else read_prompts(path)
    return found[:limit], texts_hash(found)


def _modes(given: Sequence[str] | None) -> list[str]:
    """Return the modes to verify.

    Raises:
        ConfigError: one is unknown, or there is nothing to compare with it.
    """
    from edge_rt.runtime.speculation import SPEC_MODES, require_mode

    modes = list(dict.fromkeys(given or [mode for mode in SPEC_MODES if mode not in ("off", "reference")]))
    for mode in modes:
        require_mode(mode)
    if "off" in modes:
        raise ConfigError("There is nothing to verify with --spec off.", "It is what others are compared with.", "")
    return modes


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
    from edge_rt.tokenizer import Tokenizer

    return Tokenizer.from_file(
        path / manifest.tokenizer.file, info=manifest.tokenizer, embedding_rows=manifest.model.vocab_size
    )


def _sampling(config: GenerationConfig) -> dict[str, Any]:
    names = ("max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "seed")
    return {name: getattr(config, name) for name in names}


def _report(
    terminal: Terminal,
    answers: Sequence[Answer],
    modes: Sequence[str],
    formats: Sequence[str],
    header: dict[str, Any],
    tokenizer: Tokenizer,
    *,
    json: bool,
) -> int:
    from edge_rt.runtime.verify import summary

    document = summary(answers, modes)
    if not document["prompts"]:
        left = document["left_out"][0]
        raise ContextOverflow(left["prompt_tokens"], left["requested_tokens"], left["context_tokens"])
    for found in (
        document["first_difference"],
        *(item["first_difference"] for item in document["by_drafter"].values()),
    ):
        if found is not None:
            for name in ("plain", "speculative"):
                token = found[name]
                found[f"{name}_text"] = None if token is None else tokenizer.decode([token], skip_special=False)
    if json:
        by_kv = {kv: summary([answer for answer in answers if answer.kv == kv], modes) for kv in formats}
        names = ("prompts", "identical", "by_drafter")
        document["by_kv"] = {kv: {name: part[name] for name in names} for kv, part in by_kv.items()}
        terminal.document({**document, "run": header})
    else:
        _print(terminal, document)
    if document["left_out"]:
        skipped = document["left_out"]
        numbers = ", ".join(str(row["prompt"]) for row in skipped[:20]) + (", ..." if len(skipped) > 20 else "")
        terminal.warn(f"{len(skipped)} left out, too long for the context: {numbers}")
    return 0 if document["identical"] == document["prompts"] else EXIT_DIFFERENT


def _print(terminal: Terminal, document: dict[str, Any]) -> None:
    rows = [("drafter", "prompts", "identical", "tokens", "tok/step")]
    for mode, item in document["by_drafter"].items():
        per_step = item["tokens_per_step"]
        rows.append(
            (
                mode,
                number(item["prompts"]),
                number(item["identical"]),
                number(item["tokens"]),
                "-" if per_step is None else f"{per_step:.2f}",
            )
        )
    terminal.table(rows, right=(1, 2, 3, 4))
    for mode, item in document["by_drafter"].items():
        if (found := item["first_difference"]) is not None:
            terminal.line(
                f"{mode} first differs in prompt {found['prompt']} ({found['kv']}) at token {found['position']}: "
                f"plain {_token(found, 'plain')}, speculative {_token(found, 'speculative')}"
            )
    if document["identical"] == document["prompts"]:
        terminal.line("every answer is identical")


def _token(found: dict[str, Any], name: str) -> str:
    return "the end" if found[name] is None else f"{found[name]} {found[f'{name}_text']!r}"
