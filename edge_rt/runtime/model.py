"""A loaded model: prompts in, text out."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence as Items
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack, overload

from edge_rt.device.names import CPU, ON_CPU, DeviceChoice
from edge_rt.errors import Cancelled, ConfigError, EdgeRTError, out_of_memory
from edge_rt.memory.plan import Plan
from edge_rt.ort.expert_cache import ExpertReads
from edge_rt.ort.session import follow_cpus, onnxruntime_version, pool_size
from edge_rt.package.reader import Package
from edge_rt.runtime.admission import Admission, Drafting, Wanted
from edge_rt.runtime.aio import AsyncStream, Pump, iterate, read_whole
from edge_rt.runtime.answer_forms import PLAIN_ANSWER, AnswerForm
from edge_rt.runtime.batch import Batch
from edge_rt.runtime.config import GenerationConfig, GenerationOptions
from edge_rt.runtime.decode.detokenizer import TextStream
from edge_rt.runtime.decode.draft import Drafter
from edge_rt.runtime.decode.logprobs import LogProbs
from edge_rt.runtime.decode.loop import AcceptanceRule
from edge_rt.runtime.decode.repetition import RepetitionGuard
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.scoring import PASS_ROWS, Score, score_tokens
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.forward.runner import ExclusiveRunner, Runner, closed
from edge_rt.runtime.generation import DEVICE_FAILURES, Generation, Held
from edge_rt.runtime.load.loading import Loaded, kept_gpu_bytes, load
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.many import Answer, Asked, apart, one_by_one, pair, together
from edge_rt.runtime.model_rows import ModelRows
from edge_rt.runtime.prompts import Prompt, PromptEncoder
from edge_rt.runtime.results import Event, Result
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.runtime.speculation.division import Division
from edge_rt.runtime.speculation.live_costs import LiveCosts
from edge_rt.runtime.speculation.speculation import Speculation
from edge_rt.runtime.stream import PromptOptions, Stream
from edge_rt.system.machine import return_free_memory
from edge_rt.system.option_names import known_options
from edge_rt.text.template import Inputs
from edge_rt.text.thoughts import ThoughtStream

if TYPE_CHECKING:
    from edge_rt.runtime.chat import Chat
    from edge_rt.runtime.embedding import Array as Vectors, Embedder


_LESS: Final = "Load the model with a smaller context."
_ON_CPU: Final = 'Load the model with device="cpu".'


class Model(ModelRows):
    """A package opened for generation; made by ``edge_rt.load``.

    One generation at a time: a second one, from any thread, raises ``Busy`` and disturbs nothing. Loaded with
    ``slots``, several are computed together, and further ones wait. The model keeps one KV cache, or one for each slot,
    and a prompt that begins like the last one computes only what is new. Close it, or use it as a context manager. It
    must not be used in a forked child.

    Args:
        package: the opened package.
        options: how it is loaded; None leaves everything to the plan.
        plan: what ``plan_package`` has made of the options; None: that of the options, or it is made now.

    Attributes:
        package: the package.
        plan: what its memory is planned to be.
        context_tokens: capacity of the context.
        measured_costs: what passes cost, measured.
        drafter: the trained drafter that is loaded; None if none is.
        pump: computes in the slots for tasks of an event loop; None without slots.
        device: the GPU that passes run on; None: the CPU.
        device_choice: the device's name, and what is to be said where ``auto`` has chosen it.
        verification: what a verification of speculation on the device depends on; None for the CPU.
        load_ms: milliseconds that loading took.

    Raises:
        ConfigError: an argument is out of range, or not for this package.
        InputError: the package or a part of it cannot be used.
        MemoryBudgetExceeded: the model does not fit the budget, as the plan says before anything large is loaded; or
            the system has less memory than it said.
        RuntimeUnavailable: the device is not available, or the native operators are not.
    """

    def __init__(self, package: Package, options: LoadOptions | None = None, plan: Plan | None = None) -> None:
        started = time.perf_counter()
        self._runner, options = ExclusiveRunner(), options or LoadOptions()
        plan = options.plan if plan is None else plan
        try:
            parts = load(package, options, plan, switch=self._runner.switch, runner=self._runner.get)
        except MemoryError as error:
            raise out_of_memory(error, _LESS) from error
        self.package = package
        self.usual_config, self._usual_system = options.config or GenerationConfig(), options.system
        self._batch: Batch | None = None
        self.pump: Pump | None = None
        self._runner.open(parts.runner)
        self._take(parts)
        self._options = options if parts.device is not None and options.on_device_error == CPU else None
        self.context_tokens = self.plan.choice.ctx
        if self.plan.request.slots > 1:
            most = max(min(self.prefill_chunk, parts.cache.largest_pass), 2 * len(parts.slots))
            admission = Admission(parts.slots, parts.pool, most_waiting=options.max_queue)
            speculation = parts.speculation
            division = Division(
                speculation.library,
                lambda: speculation.costs,
                most_rows=min(most, 2 * len(parts.slots) + self._speculation.draft_max),
                draft_max=self._speculation.draft_max,
            )
            own = weakref.ref(self)
            hold, forget, instead = partial(_held, own), partial(_forget, own), partial(_held_instead, own)
            self._batch = Batch(admission, hold, division, most_rows=most, forget=forget, instead=instead)
            self.pump = Pump(self._batch)
        self.load_ms = 1e3 * (time.perf_counter() - started)

    def _take(self, parts: Loaded) -> None:
        """Take what is loaded, in place of all that was before."""
        self._load_plan = parts.load_plan
        # A model that is dropped without being closed gives its share back as well.
        weakref.finalize(self, self._load_plan.release)
        self.plan = self._load_plan.plan
        self.device_choice = self.plan.device_choice or DeviceChoice(ON_CPU)
        self._texts: PromptEncoder | None = parts.texts
        self._cache, self._speculation, self.measured_costs = parts.cache, parts.speculation, parts.measured_costs
        self._prompts, self._pool = parts.prompts, parts.pool
        # The sessions hold it.
        self._experts = None if parts.experts is None else weakref.ref(parts.experts)
        self._embedder: Embedder | None = parts.embedder
        self._providers, self._isa, self._kv_format = parts.providers, parts.isa, parts.kv_format
        self.drafter = parts.drafter
        self.device, self._cpu_nodes, self.verification = parts.device, parts.cpu_nodes, parts.verification

    def _instead_of(self, failed: EdgeRTError) -> str | None:
        """Let the CPU take the place of a GPU that has failed, if that is wanted; return what is to be said of it.

        Raises:
            EdgeRTError: as ``failed``, with why the CPU cannot compute either; the model is closed then.
            Cancelled: the model was closed in the meantime.
        """
        options, self._options = self._options, None
        if options is None:
            return None
        gpu, plan = self.device_choice.device, self.plan
        options = options.on_cpu(plan, self._texts)
        self._runner.get().close()
        self._speculation.close()
        self._load_plan.release(kept_gpu_bytes=kept_gpu_bytes(plan, options.gpu_providers))
        gc.collect()
        try:
            parts = load(self.package, options, None, switch=self._runner.switch, runner=self._runner.get)
        except (EdgeRTError, MemoryError) as error:
            self.close()
            numbers = f"{failed.numbers} The CPU cannot go on: {error}"
            raise type(failed)(failed.what, numbers, failed.action) from error
        self._runner.exchange(parts.runner)
        self._take(parts)
        self.device_choice = DeviceChoice(ON_CPU, failures=((str(gpu), str(failed)),))
        if self._batch is not None:
            self._batch.admission.exchange(self._cache)
        return self.device_choice.note

    # --- generation ---

    @known_options(GenerationOptions)
    def generate(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        *,
        tools: Items[Mapping[str, Any]] | None = None,
        documents: Items[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
        cancel: CancelToken | None = None,
        on_token: Callable[[Event], None] | None = None,
        on_prefill_progress: Callable[[int, int], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Result:
        """Generate an answer and return it whole.

        Args:
            prompt: a text, taken as it is; token ids; or messages, which go through the chat template.
            config: the options.
            tools: with messages, descriptions of functions that the model may call.
            documents: with messages, texts for templates that take such.
            template_args: with messages, further variables of the chat template, such as ``enable_thinking``.
            cancel: stops the generation from elsewhere.
            on_token: called with every event; an exception it raises ends the generation and is raised here.
            on_prefill_progress: called with computed and all tokens of the prompt.
            **options: fields of ``GenerationConfig`` that replace those of ``config``.

        Raises:
            Busy, ModelClosed, ContextOverflow, ConfigError, InvalidTemplate, InferenceError, MemoryBudgetExceeded.
        """
        given: dict[str, Any] = {"tools": tools, "documents": documents, "template_args": template_args}
        given |= {"cancel": cancel, "on_prefill_progress": on_prefill_progress, **options}
        with self.stream(prompt, config, **given) as stream:
            for event in stream:
                if on_token is not None:
                    on_token(event)
        return stream.result()

    @known_options(GenerationOptions)
    def stream(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        *,
        tools: Items[Mapping[str, Any]] | None = None,
        documents: Items[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
        cancel: CancelToken | None = None,
        on_prefill_progress: Callable[[int, int], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Stream:
        """Generate an answer piece by piece; arguments and errors as in ``generate``."""
        given: dict[str, Any] = {"tools": tools, "documents": documents, "template_args": template_args}
        given |= {"cancel": cancel, "on_prefill_progress": on_prefill_progress, **options}
        return self._stream(*self._asked(prompt, config, **given))

    @overload
    def generate_many(
        self,
        prompts: Iterable[Asked],
        config: GenerationConfig | None = None,
        *,
        ordered: Literal[True] = True,
        **options: Unpack[PromptOptions],
    ) -> Generator[Answer]: ...

    @overload
    def generate_many(
        self,
        prompts: Iterable[Asked],
        config: GenerationConfig | None = None,
        *,
        ordered: Literal[False],
        **options: Unpack[PromptOptions],
    ) -> Generator[tuple[int, Answer]]: ...

    @known_options(PromptOptions)
    def generate_many(
        self,
        prompts: Iterable[Asked],
        config: GenerationConfig | None = None,
        *,
        ordered: bool = True,
        **options: Unpack[PromptOptions],
    ) -> Generator[Answer] | Generator[tuple[int, Answer]]:
        """Answer many prompts, as many at once as the model has slots.

        Prompts are taken when they are needed, few more than there are slots, so there may be any number of them.
        Answers are computed while the iteration waits for one. Leaving it early, or closing the iterator, cancels those
        under way and leaves the model usable; so does ``cancel``, which ends the iteration.

        Args:
            prompts: prompts as ``generate`` takes them, or pairs of one and a mapping of its options, which replace
                those that are given here.
            config: the options.
            ordered: give the answers in the order of the prompts; else as they come, each as (index, answer).
            **options: as in ``generate``, for all prompts.

        Yields:
            The result; of a prompt that failed the error, which is not raised: the others go on.

        Raises:
            ConfigError: an option for all prompts is wrong.
            Busy, ModelClosed: during the iteration; no further prompt could be answered.
        """
        config, shared = apart(config or self.usual_config, options)
        cancel = shared.get("cancel") or CancelToken()

        def ask(asked: Asked) -> tuple[Generation, Wanted]:
            prompt, own = pair(asked)
            return self._asked(prompt, config, **{**shared, "cancel": cancel, **own})

        if self._batch is not None:
            return together(self._batch, ask, prompts, slots=self.slots, ordered=ordered, cancel=cancel)
        return one_by_one(lambda asked: self._stream(*ask(asked)).result(), prompts, ordered=ordered, cancel=cancel)

    @known_options(GenerationOptions)
    def check(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        *,
        tools: Items[Mapping[str, Any]] | None = None,
        documents: Items[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> None:
        """Raise what a generation with these arguments would raise before its first token; nothing is computed.

        A server can so refuse a request before it begins to answer. ``stream`` raises the same when it is called, but
        for ``Busy``, which comes with the first event.

        Raises:
            Busy: the model is generating now.
            ModelClosed, ContextOverflow, ConfigError, InvalidTemplate, MemoryBudgetExceeded: as in ``generate``.
        """
        if self._batch is None:
            self._runner.check_free()
        # A stream that is not read holds nothing.
        self.stream(prompt, config, tools=tools, documents=documents, template_args=template_args, **options)

    @known_options(PromptOptions)
    async def agenerate(
        self, prompt: Prompt, config: GenerationConfig | None = None, **options: Unpack[PromptOptions]
    ) -> Result:
        """Do ``generate`` in a worker thread; cancelling the task stops the generation."""
        return await read_whole(self.astream(prompt, config, **options))

    @known_options(PromptOptions)
    def astream(
        self, prompt: Prompt, config: GenerationConfig | None = None, **options: Unpack[PromptOptions]
    ) -> AsyncStream:
        """Do ``stream`` in a worker thread; leaving the ``async for`` or cancelling the task stops the generation.

        What is wrong with the prompt or the options is raised by the first event.
        """
        return AsyncStream(partial(self.stream, prompt, config, **options), self.pump)

    @overload
    def agenerate_many(
        self,
        prompts: Iterable[Asked],
        config: GenerationConfig | None = None,
        *,
        ordered: Literal[True] = True,
        **options: Unpack[PromptOptions],
    ) -> AsyncGenerator[Answer]: ...

    @overload
    def agenerate_many(
        self,
        prompts: Iterable[Asked],
        config: GenerationConfig | None = None,
        *,
        ordered: Literal[False],
        **options: Unpack[PromptOptions],
    ) -> AsyncGenerator[tuple[int, Answer]]: ...

    @known_options(PromptOptions)
    def agenerate_many(
        self,
        prompts: Iterable[Asked],
        config: GenerationConfig | None = None,
        *,
        ordered: bool = True,
        **options: Unpack[PromptOptions],
    ) -> AsyncGenerator[Answer] | AsyncGenerator[tuple[int, Answer]]:
        """Do ``generate_many`` in a worker thread, which takes the prompts as well.

        Leaving the ``async for`` and closing the iterator, or cancelling the task, ends what is under way.
        """
        # A token of its own: leaving early must not cancel the caller's.
        outer, cancel = options.get("cancel"), CancelToken()
        unsubscribe = None if outer is None else outer.on_cancel(cancel.cancel)

        def stop() -> None:
            cancel.cancel()
            if unsubscribe is not None:
                unsubscribe()

        given: dict[str, Any] = {**options, "cancel": cancel}
        return iterate(partial(self.generate_many, prompts, config, ordered=ordered, **given), stop)

    @known_options()
    def score(
        self,
        text: str | Items[int],
        *,
        cancel: CancelToken | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Score:
        """Return how likely the model finds a text: the log probability of every token, and perplexity.

        A text that does not fit the context is scored in windows of it, each half a context behind the one before, so
        that every token sees at least half a context. The KV cache is empty afterwards; with slots, other rows are
        forgotten only where it needs theirs, and it waits until the generations before it have ended.

        Args:
            text: a text, taken as it is, or token ids.
            cancel: stops it from elsewhere.
            on_progress: called with scored and all tokens.

        Raises:
            Busy, ModelClosed, ConfigError, EncodingBudgetExceeded, InferenceError.
            Cancelled: it was stopped.
        """
        token_ids = self._require_texts().whole_text(text)
        rows = min(self.logit_rows or PASS_ROWS, PASS_ROWS, self._cache.largest_pass)
        with self._alone(cancel) as runner:
            chunk = min(self.prefill_chunk, self._cache.largest_pass)
            return score_tokens(token_ids, runner, self._cache, rows=rows, chunk=chunk, on_progress=on_progress)

    @known_options()
    def embed(
        self,
        texts: Iterable[str | Items[int]],
        *,
        prompt: str | None = None,
        truncate: bool = False,
        cancel: CancelToken | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Vectors:
        """Return the embeddings of texts: float32 ``[texts, hidden_size]``, of length 1 where the model makes them so.

        Loaded with ``slots``, so many texts are computed in the same passes; none depends on the others. The KV cache
        is empty afterwards.

        Args:
            texts: texts or token ids, taken as they are; the model's end token is added.
            prompt: name of one of ``package.manifest.pooling.prompts``, which is put in front of every text.
            truncate: whether a text that does not fit the context loses its end; else it is refused.
            cancel: stops it from elsewhere.
            on_progress: called with the texts that are done, and with all.

        Raises:
            ConfigError: the package gives no embeddings, or passes run on a GPU; there is no such prompt, a text has no
                tokens, or one that the model has not.
            ContextOverflow: a text does not fit.
            Busy, ModelClosed, InferenceError, Cancelled.
        """
        from edge_rt.runtime.embedding import embedding_ids, require_pooling

        pooling = require_pooling(self.package.manifest)
        self._runner.get()
        if self._embedder is None:
            raise ConfigError("Embeddings are made on the CPU.", f"Passes run on {self.device_choice.device}.", _ON_CPU)
        token_ids = embedding_ids(texts, self.tokenizer, pooling, prompt, self.context_tokens, truncate=truncate)
        with self._alone(cancel):
            return self._embedder.embed(token_ids, self.package.manifest.model.hidden_size, on_progress)

    @known_options()
    def chat(
        self,
        system: str | None = None,
        *,
        tools: Items[Mapping[str, Any]] | None = None,
        documents: Items[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> Chat:
        """Return an empty conversation with this model; the arguments are those of ``generate``.

        Raises:
            InvalidTemplate: the model has no chat template.
            ConfigError: its template has no place for tools or documents that are given.
        """
        self._require_texts().require_places(Inputs(tools, documents))
        from edge_rt.runtime.chat import Chat

        system = self._usual_system if system is None else system
        return Chat(self, system=system, tools=tools, documents=documents, template_args=template_args)

    # --- what chats are made of ---

    def stream_ids(
        self,
        token_ids: Items[int],
        config: GenerationConfig,
        *,
        cancel: CancelToken | None = None,
        on_prefill_progress: Callable[[int, int], None] | None = None,
        on_result: Callable[[Result], None] | None = None,
        called: float | None = None,
        form: AnswerForm = PLAIN_ANSWER,
    ) -> Stream:
        """Generate behind token ids.

        Args:
            token_ids: the prompt.
            config: the options.
            cancel: stops the generation from elsewhere.
            on_prefill_progress: called with computed and all tokens of the prompt.
            on_result: called once with the result, however the generation ends, unless it fails.
            called: moment from which the time to the first token counts, ``time.perf_counter``.
            form: what the answer may have besides its text.
        """
        asked = self._generation(token_ids, config, cancel, on_prefill_progress, called or time.perf_counter(), form)
        return self._stream(*asked, on_result)

    @known_options(GenerationOptions, name="generate_many")
    def _asked(
        self,
        prompt: Prompt,
        config: GenerationConfig | None,
        *,
        tools: Items[Mapping[str, Any]] | None = None,
        documents: Items[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
        cancel: CancelToken | None = None,
        on_prefill_progress: Callable[[int, int], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> tuple[Generation, Wanted]:
        """Return the generation of an answer; arguments and errors as in ``generate``."""
        called = time.perf_counter()
        config = (config or self.usual_config).with_options(**options)
        inputs = Inputs(config.shown(tools), documents, template_args)
        token_ids, form = self._require_texts().prepare(prompt, config, inputs)
        return self._generation(token_ids, config, cancel, on_prefill_progress, called, form)

    def _stream(
        self, generation: Generation, wanted: Wanted, on_result: Callable[[Result], None] | None = None
    ) -> Stream:
        # A token of its own: a stream that is left early must not cancel the caller's.
        if self._batch is None:
            return Stream(generation.events, CancelToken(), on_result)
        enter = partial(self._batch.submit, generation, wanted=wanted)
        return Stream(partial(self._batch.events, generation, wanted), CancelToken(), on_result, enter)

    def _generation(
        self,
        token_ids: Items[int],
        config: GenerationConfig,
        cancel: CancelToken | None,
        on_prefill_progress: Callable[[int, int], None] | None,
        called: float,
        form: AnswerForm,
    ) -> tuple[Generation, Wanted]:
        """Return a generation behind token ids, and how a batch computes it; arguments as in ``stream_ids``."""
        self._runner.get()
        self._require_texts().check_length(token_ids, config)
        sequence = Sequence(
            token_ids,
            capacity=self.context_tokens,
            max_tokens=config.max_tokens,
            end_ids=self.tokenizer.eos_token_ids,
        )
        # In the caller's thread: a step computes for others as well.
        ahead = self._batch is not None and self.plan.request.formats
        grammar = self._require_texts().grammar(config, form, ahead=ahead)
        sampling = config.sampling(self.package.manifest.sampling)
        sampler = Sampler(
            config,
            self.package.manifest.model.vocab_size,
            token_ids,
            sampling,
            # A chat template closes every message with an end token: the penalty would keep answers from ending.
            exempt=sequence.end_ids,
            is_breaker=partial(self._has_text, [text.encode() for text in config.dry_breakers]),
            isa=self._isa,
        )
        mode = self._speculation.resolve(config.spec, has_reference=config.reference is not None, accept=config.accept)
        reference = self._encode_reference(config.reference, mode)

        def drafting(slot: int = 0, computes: bool = True) -> tuple[Drafter, AcceptanceRule]:
            return self._speculation.drafting(
                config, mode, reference, sampling.temperature, slot=slot, computes=computes
            )

        generation = Generation(
            sequence,
            partial(self._hold, cancel, drafting),
            self._cache,
            sampler,
            TextStream(self._require_texts().decoder(form), config.stop),
            chunk=self.prefill_chunk,
            called=called,
            on_prefill=on_prefill_progress,
            spec_mode=mode,
            planned=lambda: self._load_plan.totals,
            experts=None if self._experts is None else self._expert_counts,
            guard=RepetitionGuard(self.tokenizer.token_bytes) if config.repetition_guard else None,
            # Free text that may call tools is as without them.
            thoughts=ThoughtStream(form.thoughts, is_exact=grammar is not None and grammar[0] is not None),
            tools=form.tools,
            begun=form.begun,
            logprobs=None if config.logprobs is None else LogProbs(config.logprobs, self._token_text),
            wanted=grammar,
            prompts=self._prompts,
        )
        # Where drafts change the text, other answers in the pass would.
        is_alone = config.accept == "ratio" and sampling.temperature > 0.0
        return generation, Wanted(drafting, is_alone, cancel)

    def expert_reads(self) -> ExpertReads | None:
        """Return what was read of experts since the model was loaded; None where they are resident, or none are."""
        return None if self._experts is None else self._expert_counts()[0]

    def _expert_counts(self) -> tuple[ExpertReads, int]:
        cache = None if self._experts is None else self._experts()
        return (ExpertReads() if cache is None else cache.counts()), self.plan.choice.expert_bytes or 0

    def _compute(self, token_ids: Items[int]) -> None:
        self.generate(token_ids, max_tokens=1, temperature=0.0, spec="off")

    def _token_text(self, token_id: int) -> str:
        return self.tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def _has_text(self, texts: Items[bytes], token_id: int) -> bool:
        """Return whether a token contains one of some texts."""
        own = self.tokenizer.token_bytes(token_id)
        return any(text in own for text in texts)

    @contextmanager
    def _hold(self, outer: CancelToken | None, drafting: Drafting, cancel: CancelToken) -> Generator[Held]:
        """Hold the model for one generation; what drafters were in the middle of is forgotten if it fails.

        Args:
            drafting: chooses who drafts; it may have to measure what passes cost.
        """
        with self._runner.hold(cancel, outer):
            follow_cpus()
            try:
                yield self._held(drafting)
                self._speculation.save_costs()
            except (GeneratorExit, Cancelled):
                raise
            except BaseException as error:
                # It may have come in the middle of a drafter's work. Rows are committed or free, whatever came.
                self._speculation.forget()
                if isinstance(error, MemoryError):
                    raise out_of_memory(error, _LESS) from error
                raise

    def _held(self, drafting: Drafting) -> Held:
        """Return what an answer is computed with; where a GPU fails while its costs are measured, the CPU."""
        failed = None
        try:
            chosen = drafting(0, True)
        except DEVICE_FAILURES as error:
            if self._options is None:
                raise
            failed = error
        if failed is not None:
            return self._held_instead(failed, drafting)
        instead = None if self._options is None else lambda error: self._held_instead(error, drafting)
        return Held(self._runner.get(), *chosen, self._cache, instead)

    def _held_instead(self, failed: EdgeRTError, drafting: Drafting) -> Held:
        """Return what goes on with an answer where a GPU has failed.

        Raises:
            EdgeRTError: as ``failed``, where nothing takes its place; and as of ``_instead_of``.
        """
        note = self._instead_of(failed)
        if note is None:
            raise failed
        return Held(self._runner.get(), *drafting(0, True), self._cache, note=note)

    @contextmanager
    def _held_by_batch(self, cancel: CancelToken) -> Generator[Runner]:
        with self._runner.hold(cancel):
            follow_cpus()
            failed = None
            try:
                self._speculation.prepare()
            except DEVICE_FAILURES as error:
                failed = error
            if failed is not None and self._instead_of(failed) is None:
                raise failed
            yield self._runner.get()
            self._speculation.save_costs()

    # --- life ---

    @property
    def slots(self) -> int:
        """Answers that are computed at once."""
        return self.plan.choice.slots

    @property
    def under_way(self) -> tuple[int, int] | None:
        """Generations that have a slot, and those that wait for one; None: the model has no slots."""
        if self._batch is None:
            return None
        admission = self._batch.admission
        return len(admission.active), len(admission.waiting)

    @property
    def most_under_way(self) -> int | None:
        """Generations that may have a slot or wait for one; None: any number."""
        return None if self._batch is None else self._batch.admission.most

    @property
    def threads(self) -> int:
        """Threads that compute, the calling one included."""
        return pool_size() or 1

    @property
    def prefill_chunk(self) -> int:
        """Tokens of one pass over a prompt."""
        return self.plan.choice.prefill_chunk

    @property
    def logit_rows(self) -> int | None:
        """Most rows whose logits a pass may want; None: as many as the system has memory for."""
        return self._load_plan.most_logit_rows

    @property
    def speculation(self) -> Speculation:
        """The drafters, and what they have learned."""
        return self._speculation

    def calibrate(self) -> RowCosts:
        """Measure what passes cost on this machine, anew, and keep it; empties the KV cache.

        Returns:
            The costs; later passes correct them.

        Raises:
            Busy: a generation is running.
        """
        with self.passes() as (runner, _):
            costs = self.measured_costs.measure(runner)
            self._speculation.costs = LiveCosts(costs, self.measured_costs.keep)
        return costs

    def describe(self) -> dict[str, Any]:
        """Return what was decided when the model was loaded, as a JSON object."""
        manifest = self.package.manifest
        return {
            "model": manifest.model.name,
            "package": str(self.package.path),
            "package_id": self.package.id,
            "architecture": manifest.model.family,
            "parameters": manifest.num_parameters,
            "op_profile": manifest.op_profile,
            "activations": manifest.activations,
            "quantisation": dict(manifest.quantisation),
            "context_tokens": self.context_tokens,
            "slots": self.slots,
            "rotation": None if manifest.decoder is None else manifest.decoder.rotation(self.context_tokens),
            "isa": self._isa,
            "kv_format": self._kv_format,
            "kv_bytes_per_token": self._cache.row_bytes,
            "weights_bytes": manifest.files["weights.bin"].size,
            "device": "cpu" if self.device is None else self.device.facts,
            "device_note": self.device_choice.note,
            "cpu_nodes": list(self._cpu_nodes),
            "providers": self._providers,
            "threads": self.threads,
            "onnxruntime": onnxruntime_version(),
            "prefill_chunk": self.prefill_chunk,
            "speculation": self._speculation.mode,
            "drafter": None if self.drafter is None else self.drafter.info.name,
            "draft_model": None if self._load_plan.draft_model is None else self._load_plan.draft_model.path,
            "sampling": asdict(self.usual_config.sampling(manifest.sampling)),
            "memory": self._load_plan.to_json(),
            **({} if (reads := self.expert_reads()) is None else {"expert_reads": asdict(reads)}),
            "load_ms": self.load_ms,
        }

    def close(self) -> None:
        """Stop a running generation and free the model; does nothing the second time.

        Waits for the pass under way only, so it may be called from any thread and while a stream is half read: that
        stream then ends as a cancelled one.
        """
        if self._runner.close():
            try:
                self._speculation.close()
            finally:
                self._texts = self._embedder = None
                self._load_plan.release()
            # What still hangs together in cycles would keep its places in the heap until some later load.
            gc.collect()
            return_free_memory()

    def __repr__(self) -> str:
        state = f"{self.context_tokens} tokens of context" if self._runner.is_open else "closed"
        return f"<edge_rt.Model {self.package.path.name!r}, {state}, on {self.device_choice.device}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _forget(model: weakref.ref[Model]) -> None:
    """Discard what the drafters of a model have learned."""
    if (held := model()) is not None:
        held._speculation.forget()


def _held_instead(model: weakref.ref[Model], failed: EdgeRTError, drafting: Drafting) -> Held | None:
    """Return what goes on with an answer of a batch where a GPU has failed; None if nothing does."""
    held = model()
    return None if held is None or held._options is None else held._held_instead(failed, drafting)


def _held(model: weakref.ref[Model], cancel: CancelToken) -> AbstractContextManager[Runner]:
    """Return what holds a model for a batch, which does not keep it alive."""
    held = model()
    if held is None:
        raise closed()
    return held._held_by_batch(cancel)
