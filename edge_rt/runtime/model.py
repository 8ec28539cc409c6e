"""A loaded model: prompts in, text out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence as Items
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from edge_rt.runtime.admission import Wanted
from edge_rt.runtime.aio import AsyncStream, iterate, read_whole
from edge_rt.runtime.answer_forms import PLAIN_ANSWER, AnswerForm
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
from edge_rt.runtime.generation import Generation
from edge_rt.runtime.loaded_model import LoadedModel
from edge_rt.runtime.many import Answer, Asked, apart, one_by_one, pair, together
from edge_rt.runtime.prompts import Prompt
from edge_rt.runtime.results import Event, Result
from edge_rt.runtime.stream import PromptOptions, Stream
from edge_rt.system.option_names import known_options
from edge_rt.text.template import Inputs
from edge_rt.text.thoughts import ThoughtStream

if TYPE_CHECKING:
    from edge_rt.runtime.chat import Chat
    from edge_rt.runtime.embedding import Array as Vectors


class Model(LoadedModel):
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
            ConfigError: the package gives no embeddings; there is no such prompt, a text has no tokens, or one that the
                model has not.
            ContextOverflow: a text does not fit.
            Busy, ModelClosed, InferenceError, Cancelled.
        """
        from edge_rt.runtime.embedding import embedding_ids, require_pooling

        pooling = require_pooling(self.package.manifest)
        self._runner.get()
        assert self._embedder is not None
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

    def _compute(self, token_ids: Items[int]) -> None:
        self.generate(token_ids, max_tokens=1, temperature=0.0, spec="off")

    def _token_text(self, token_id: int) -> str:
        return self.tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def _has_text(self, texts: Items[bytes], token_id: int) -> bool:
        """Return whether a token contains one of some texts."""
        own = self.tokenizer.token_bytes(token_id)
        return any(text in own for text in texts)
