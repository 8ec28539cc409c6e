"""``edge-rt verify``: compare speculative answers with plain ones, token by token."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from edge_rt.cli.interrupt import SignalReceived, each_in_background
from edge_rt.cli.loading import load_model, obtain_package, plan_model, tell_device, telling_load
from edge_rt.cli.notices import WHY_NOTHING, never_drafts
from edge_rt.cli.options import answer_flags, flags
from edge_rt.cli.options.groups import ModelFlags, OutputFlags, PlaceFlags, SpeculationFlags, place_spec
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.progress import StatusLine
from edge_rt.cli.render.verify_report import findings, print_findings, tell_left_out, tell_unverified
from edge_rt.device.names import CPU_BITS, SELF_TEST, VULKAN
from edge_rt.errors import ConfigError
from edge_rt.package.exits import SELF_KV, require_self_mode
from edge_rt.package.spec_modes import (
    AHEAD,
    AUTO,
    COMPUTED_MODES,
    CORPUS_MODES,
    DRAFTER_MODES,
    EXIT,
    MODEL,
    OFF,
    SELF,
    SPEC_MODES,
    Drafts,
    drafting_package,
    mode_of,
    require_mode,
)
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.version import VERSION

if TYPE_CHECKING:
    from edge_rt.measure.prompts import Prompt
    from edge_rt.measure.verify import Answer, VerifyState
    from edge_rt.package.manifest import Manifest
    from edge_rt.package.reader import Package
    from edge_rt.runtime.load.options import LoadOptions
    from edge_rt.text.tokenizer import Tokenizer


class VerifyRun:
    """Answers every prompt with every cache format and every mode."""

    def __init__(
        self,
        terminal: Terminal,
        package: Package,
        options: LoadOptions,
        prompts: Sequence[Prompt],
        config: GenerationConfig,
        modes: Sequence[str],
        formats: Sequence[str],
        *,
        raw: bool,
    ) -> None:
        self._terminal = terminal
        self._package = package
        self._options = options
        self._prompts = prompts
        self._config = config
        self._modes = modes
        self._formats = formats
        self._raw = raw
        self._answers: dict[tuple[str, str, int], Answer] = {}
        self._different = 0
        self._base_bytes: int | None = None
        self._verifications: list[dict[str, Any]] = []

    def execute(self, state: VerifyState | None) -> list[Answer]:
        """Return all answers, including those from the state: by cache format, mode and prompt."""
        modes = ("off", *self._modes)
        places = [(kv, mode, prompt.index) for kv in self._formats for mode in modes for prompt in self._prompts]
        wanted = set(places)
        for answer in state.answers if state is not None else ():
            # A smaller --limit than last time leaves some out.
            if (answer.kv, answer.mode, answer.prompt) in wanted:
                self._add(answer)
        if self._answers:
            self._terminal.note(f"{len(self._answers)} of {len(places)} answers are already there", "dim")
        line = StatusLine(self._terminal, len(places))

        def take(answer: Answer) -> None:
            if state is not None:
                state.append(answer)
            self._add(answer)
            line.show(len(self._answers), f"answers ({answer.kv}, {answer.mode}), {self._different} different")

        try:
            for kv in self._formats:
                if any((kv, mode, prompt.index) not in self._answers for mode in modes for prompt in self._prompts):
                    self._answer(kv, modes, take)
        except SignalReceived:
            line.clear()
            if state is not None:
                done = f"{len(self._answers)} of {len(places)} answers"
                self._terminal.note(f"{done} are saved: the same command continues from there")
            raise
        line.clear()
        return [self._answers[place] for place in places]

    def keep_verification(self, *, is_same: bool, drafted: int) -> None:
        """Remember for later loads on a device whether speculation changes nothing there; nothing for the CPU.

        Only answers that were generated in this run count: a state may come from another device.
        """
        if not self._verifications:
            return
        if not drafted:
            self._terminal.warn("speculation stays off on this device: nothing was drafted.")
            return
        from edge_rt.runtime.speculation.stored_costs import user_verified

        store = user_verified()
        for key in self._verifications:
            if not is_same:
                store.remove(key)
            elif not store.save(key, {"drafted": drafted}):
                self._terminal.warn("the verification cannot be stored: speculation stays off on this device.")

    def _add(self, answer: Answer) -> None:
        from edge_rt.measure.prompts import PLAIN, first_difference

        self._answers[answer.kv, answer.mode, answer.prompt] = answer
        plain = self._answers.get((answer.kv, PLAIN, answer.prompt))
        if plain is not None and first_difference(plain.token_ids, answer.token_ids) is not None:
            self._different += 1

    def _answer(self, kv: str, modes: Sequence[str], take: Callable[[Answer], None]) -> None:
        """Generate the missing answers with one cache format."""
        pending = {mode: [p for p in self._prompts if (kv, mode, p.index) not in self._answers] for mode in modes}
        options = self._options.but(kv=kv)
        plan = plan_model(self._package, options, self._base_bytes)
        # Every model reuses the heap of the previous one.
        self._base_bytes = plan.base_bytes
        with load_model(self._package, options, plan) as loaded:
            if loaded.verification is not None:
                self._verifications.append(loaded.verification)

            def work(token: CancelToken) -> Generator[Answer]:
                from edge_rt.measure.verify import answers

                for mode, prompts in pending.items():
                    yield from answers(loaded, prompts, self._config, mode, kv=kv, raw=self._raw, cancel=token)

            # This thread saves the answers, because the other one may be abandoned at any point.
            for answer in each_in_background(work):
                take(answer)


EXIT_DIFFERENT: Final = 1
_WHY_IDLE: Final = "it never drafts, because graphs of that op profile do not return the most likely tokens"


@dataclass(frozen=True)
class ComparedFlags:
    """What is compared: prompts, modes of speculation, cache formats."""

    prompts: Annotated[Path | None, flags.PROMPTS.but(shown="a few built-in ones")] = None
    limit: Annotated[int | None, flags.LIMIT] = None
    spec: Annotated[
        list[str] | None,
        flags.SPEC.but(
            help="auto, or a drafter; reference copies from the prompt; repeatable.",
            shown="all that this package can run, but reference and self",
            panel=None,
            complete=None,
        ),
    ] = None
    kv_type: Annotated[
        list[str] | None, flags.KV_TYPE.but(help="Format of the KV cache (see inspect); repeatable.")
    ] = None
    state: Annotated[Path | None, flags.STATE] = None
    raw: Annotated[bool, flags.RAW] = False

    def modes(self) -> list[str]:
        """Return the modes to verify."""
        left_out = (OFF, "reference", *COMPUTED_MODES)
        modes = list(dict.fromkeys(self.spec or [mode for mode in SPEC_MODES if mode not in left_out]))
        for mode in modes:
            require_mode(mode)
        if OFF in modes:
            raise ConfigError(
                "There is nothing to verify with --spec off.",
                "Plain decoding is what the other modes are compared with.",
                "",
            )
        return modes

    def formats(self, manifest: Manifest, modes: Sequence[str]) -> list[str]:
        """Return the cache formats to verify; a wrong one is refused before a long run starts."""
        usual = (SELF_KV,) if SELF in modes else manifest.kv_formats[:1]
        formats = list(dict.fromkeys(self.kv_type or usual))
        for name in formats if SELF in modes else ():
            require_self_mode(SELF, name, manifest)
        for name in formats:
            if name not in manifest.kv_formats:
                raise ConfigError(
                    "The package has no such cache format.",
                    f"Got {name!r:.40}; it has {', '.join(manifest.kv_formats)}.",
                    "Choose one of them.",
                )
        return formats


@dataclass(frozen=True)
class AnswerOptions:
    """How the compared answers are generated; greedy unless a flag says otherwise."""

    max_tokens: Annotated[int, answer_flags.MAX_TOKENS.but(shown="256", least=1, panel=answer_flags.SAMPLING)] = 256
    temp: Annotated[float, answer_flags.TEMP.but(shown="0", panel=answer_flags.SAMPLING)] = 0.0
    top_p: Annotated[float, answer_flags.TOP_P.but(shown="0.95")] = 0.95
    top_k: Annotated[int, answer_flags.TOP_K.but(shown="0")] = 0
    repeat_penalty: Annotated[float, answer_flags.REPEAT_PENALTY.but(shown="1.0")] = 1.0
    seed: Annotated[int, answer_flags.SEED.but(help="Seed of the first prompt; others follow.", shown="0")] = 0

    def config(self) -> GenerationConfig:
        """Return the options of generation."""
        return GenerationConfig(
            max_tokens=self.max_tokens,
            temperature=self.temp,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=0.0,
            repetition_penalty=self.repeat_penalty,
            repetition_guard=False,
            seed=self.seed,
        )


def verify(
    compared: ComparedFlags,
    load: Annotated[
        ModelFlags, only("named", "model", "memory", "device_memory", "experts", "ctx", "threads", "device", "isa")
    ],
    answers: AnswerOptions,
    speculation: Annotated[SpeculationFlags, only("draft_max", "corpus", "drafter")],
    output: OutputFlags,
    places: PlaceFlags,
) -> int:
    """Check that speculation changes no answer; exit code 1 if it does."""
    terminal = output.terminal()
    chosen = answers.config()
    texts, all_hash = _prompts(compared.prompts, compared.limit)
    modes = [place_spec(mode, places) for mode in compared.modes()]
    if speculation.corpus is not None and not set(CORPUS_MODES).intersection(modes):
        raise ConfigError(f"--corpus is not used with --spec {', '.join(modes)}.", "It is used with auto, suffix.", "")
    if speculation.drafter is not None and not any(mode_of(mode) in DRAFTER_MODES for mode in modes):
        raise ConfigError(
            f"--drafter is not used with --spec {', '.join(modes)}.", f"It is used with {', '.join(DRAFTER_MODES)}.", ""
        )
    asked = load.options(places, speculation)
    _, package = obtain_package(terminal, load.reference, places, budget=load.budget_bytes(places))
    manifest = package.manifest
    formats = compared.formats(manifest, modes)
    asked = telling_load(terminal, _loading(modes, asked).but(unverified=True))
    modes = _with_computed(_drafting(terminal, modes, manifest), package, asked, is_asked=compared.spec is not None)
    asked, bits = _on_one_device(terminal, package, asked, formats[0])
    header = {
        "edge_rt": VERSION,
        "package_id": package.id,
        "prompts": all_hash,
        "spec": modes,
        "kv": formats,
        "options": _sampling(chosen),
        "raw": compared.raw,
        "draft_max": speculation.draft_max,
        "corpus": None if speculation.corpus is None else str(speculation.corpus),
        "drafter": None if speculation.drafter is None else str(speculation.drafter),
        "ctx": load.ctx,
        "isa": load.isa,
        "device": str(asked.device_name),
        **bits,
    }
    run = VerifyRun(terminal, package, asked, texts, chosen, modes, formats, raw=compared.raw)
    if compared.state is None:
        all_answers = run.execute(None)
    else:
        from edge_rt.measure.verify import VerifyState

        with VerifyState(compared.state, header) as kept:
            all_answers = run.execute(kept)
    document = findings(all_answers, modes, formats, header, _tokenizer(package))
    if output.json:
        terminal.document(document)
    else:
        print_findings(terminal, document)
    tell_left_out(terminal, document)
    tell_unverified(terminal, document)
    is_same = document["identical"] == document["prompts"]
    run.keep_verification(is_same=is_same, drafted=document["drafted"])
    return 0 if is_same else EXIT_DIFFERENT


def _on_one_device(
    terminal: Terminal, package: Package, asked: LoadOptions, kv: str
) -> tuple[LoadOptions, dict[str, Any]]:
    """Return the options with the device that ``auto`` stands for, so that all answers come from the same one.

    Beside them is what is known of the device's bits, where they need not be the CPU's, as ``doctor`` tells it.
    """
    from edge_rt.runtime.load.planning import plan_package

    plan = plan_package(package, asked.but(kv=kv))
    choice, gpu = plan.device_choice, plan.device.gpu
    assert choice is not None
    tell_device(terminal, choice)
    # A budget of a GPU's memory says nothing about the CPU that takes its place.
    memory = asked.device_memory if choice.device.is_gpu or choice.is_named else None
    bits: dict[str, Any] = {}
    if gpu is not None and choice.device.kind == VULKAN:
        provider = asked.gpu_providers.of(choice.device)
        found = provider.self_test(provider.gpu(choice.device))
        bits = {CPU_BITS: found.has_cpu_bits, SELF_TEST: dict(found.operations)}
    return asked.but(device=choice.device, device_memory=memory), bits


def _prompts(path: Path | None, limit: int | None) -> tuple[list[Prompt], str]:
    """Return the prompts to answer, and the hash of all prompts of the file."""
    from edge_rt.measure.prompts import built_in_prompts, read_prompts, texts_hash

    found = built_in_prompts() if path is None else read_prompts(path)
    return found[:limit], texts_hash(found)


def _drafting(terminal: Terminal, modes: Sequence[str], manifest: Manifest) -> list[str]:
    """Return the modes to verify, without those that never draft with this package; warn about its limits."""
    op_profile = manifest.op_profile
    if manifest.drafts is Drafts.NOTHING:
        raise ConfigError(
            "There is nothing to verify: speculation is off with this package.",
            f"{WHY_NOTHING[0].upper()}{WHY_NOTHING[1:]}.",
            "Choose another package.",
        )
    idle = [mode for mode in modes if never_drafts(mode, op_profile)]
    drafting = [mode for mode in modes if mode not in idle]
    if not drafting:
        raise ConfigError(
            f"There is nothing to verify with --spec {', '.join(idle)}.",
            f"In the op profile {op_profile} {_WHY_IDLE}.",
            "Choose another drafter, or a package of the op profile native.",
        )
    if not manifest.drafts.are_exact:
        terminal.warn(
            f"identical answers are not guaranteed in the op profile {op_profile}: the results of its attention depend "
            "on which rows are computed together; auto drafts nothing there"
            + (f"; {', '.join(idle)} is left out: {_WHY_IDLE}" if idle else "")
        )
    return drafting


def _loading(modes: Sequence[str], asked: LoadOptions) -> LoadOptions:
    """Return the options of a load that has what all modes draft with."""
    models = [mode for mode in modes if mode_of(mode) == MODEL]
    if len(models) > 1 or (models and (SELF in modes or asked.drafter is not None)):
        others = [mode for mode in modes if mode_of(mode) in (MODEL, SELF)] + ["--drafter"] * (
            asked.drafter is not None
        )
        raise ConfigError(
            "These ways of drafting cannot be loaded together.",
            f"Got {', '.join(others)}.",
            "Verify one after another.",
        )
    if SELF in modes:
        return asked.but(spec=SELF)
    if models:
        return asked.but(drafter=Path(str(drafting_package(models[0]))))
    # Named, so that a plan has room for what drafts, or is refused: it must not give it up.
    return asked.but(spec=modes[0] if len(modes) == 1 and modes[0] != "reference" else AUTO)


def _with_computed(modes: list[str], package: Package, asked: LoadOptions, *, is_asked: bool) -> list[str]:
    """Return the modes; if none was asked for, with that of the package's trained drafter, and of its exits."""
    from edge_rt.package.reader import is_package
    from edge_rt.runtime.load.drafters import choose_drafter, drafting_shapes

    is_second = asked.drafter is not None and is_package(asked.drafter.expanduser())
    for mode in modes:
        if mode_of(mode) in COMPUTED_MODES:
            drafting_shapes(package, mode, None if is_second else asked.drafter)
    if is_asked:
        return modes
    if is_second:
        second = [f"{MODEL}:{asked.drafter}"]
        drafter = choose_drafter(package, AUTO, None)
    else:
        second, drafter = [], choose_drafter(package, AUTO, asked.drafter)
    own = [EXIT] if package.manifest.exits else []
    own += [AHEAD] if package.manifest.ahead is not None else []
    return list(dict.fromkeys((*modes, *([] if drafter is None else [drafter.info.kind]), *own, *second)))


def _tokenizer(package: Package) -> Tokenizer:
    """Return the tokenizer of a package."""
    from edge_rt.text.tokenizer import Tokenizer

    manifest = package.manifest
    return Tokenizer.from_file(
        package.file(manifest.tokenizer.file), info=manifest.tokenizer, embedding_rows=manifest.model.vocab_size
    )


def _sampling(config: GenerationConfig) -> dict[str, Any]:
    names = ("max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "seed")
    return {name: getattr(config, name) for name in names}
