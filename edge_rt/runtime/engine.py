"""A loaded model: prompts in, text out."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence as Items
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from edge_rt.errors import (
    Busy,
    Cancelled,
    ConfigError,
    ContextOverflow,
    InferenceError,
    InvalidTemplate,
    MemoryBudgetExceeded,
    ModelClosed,
    RuntimeUnavailable,
    StorageError,
)
from edge_rt.machine import usable_cpus
from edge_rt.package import Package, open_package
from edge_rt.runtime.accept import accept
from edge_rt.runtime.aio import AsyncStream
from edge_rt.runtime.cache import KVCache
from edge_rt.runtime.cancel import CancelToken
from edge_rt.runtime.chat import Chat
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode import AcceptanceRule
from edge_rt.runtime.draft import Drafter, NullDrafter
from edge_rt.runtime.drafters.corpus import Corpus
from edge_rt.runtime.generation import Generation
from edge_rt.runtime.interface import open_interface
from edge_rt.runtime.pricing import PassPrices
from edge_rt.runtime.results import Event, Result
from edge_rt.runtime.row_cost import CostStore, RowCosts
from edge_rt.runtime.runner import ModelRunner
from edge_rt.runtime.sampling import Sampler
from edge_rt.runtime.sequence import Sequence
from edge_rt.runtime.speculation import SpecOptions, Speculation
from edge_rt.runtime.stream import EventSource, Stream
from edge_rt.runtime.text import TextStream
from edge_rt.session import Session, StopSwitch, onnxruntime_version, pool_size
from edge_rt.template import ChatTemplate, RenderedPrompt
from edge_rt.tokenizer import Tokenizer

DEFAULT_CONTEXT: Final = 8192
"""Largest context taken without being asked for, in tokens."""
DEFAULT_PREFILL_CHUNK: Final = {"native": 256, "portable": 128}
"""Op profile -> tokens of one pass over a prompt: larger ones need more memory, and with ONNX Runtime's attention they
compute more masked scores."""

Message = Mapping[str, Any]
Prompt = str | Items[int] | Items[Message]


class Model:
    """A package opened for generation; made by ``edge_rt.load``.

    One generation at a time: a second one, from any thread, raises ``Busy`` and disturbs nothing. The model keeps one
    KV cache, and a prompt that begins like the last one computes only what is new. Close it, or use it as a context
    manager. It must not be used in a forked child.

    Args:
        package: the opened package.
        ctx: capacity of the context in tokens; None takes the model's own, up to ``DEFAULT_CONTEXT``.
        threads: None takes every CPU this process may use; the number is one per process.
        device: ``"auto"`` or ``"cpu"``.
        prefill_chunk: tokens of one pass over a prompt; None takes the op profile's ``DEFAULT_PREFILL_CHUNK``.
        kv: format of the KV cache; None takes the one that the package prefers.
        isa: instruction set of the native operators; None is the best one.
        spec: how to speculate, or a mode: ``"auto"``, ``"off"`` or a drafter's name.
        costs: where the measured costs of passes are kept; None keeps them in memory only.
        on_calibrate: called when a generation has to wait for their measurement, which takes a second or two.

    Raises:
        ConfigError: an argument is out of range, or not for this package.
        InputError: the package or a part of it cannot be used.
        MemoryBudgetExceeded: the KV cache or the model does not fit the memory.
        RuntimeUnavailable: the device is not available, or the native operators are not.
    """

    def __init__(
        self,
        package: Package,
        *,
        ctx: int | None = None,
        threads: int | None = None,
        device: str = "auto",
        prefill_chunk: int | None = None,
        kv: str | None = None,
        isa: str | None = None,
        spec: SpecOptions | str = "auto",
        costs: CostStore | None = None,
        on_calibrate: Callable[[], None] | None = None,
    ) -> None:
        started = time.perf_counter()
        spec = SpecOptions(spec) if isinstance(spec, str) else spec
        manifest = package.manifest
        config = manifest.model
        _check_device(device)
        self._chunk = DEFAULT_PREFILL_CHUNK[manifest.op_profile] if prefill_chunk is None else prefill_chunk
        if self._chunk < 1:
            raise ConfigError("The prefill chunk is out of range.", f"Got {prefill_chunk}.", "Give at least 1.")
        self.package = package
        self.context_tokens = _context_tokens(ctx, config.context_length)
        self.tokenizer = Tokenizer.from_file(
            package.file(manifest.tokenizer.file),
            info=manifest.tokenizer,
            embedding_rows=config.vocab_size,
        )
        self._template = _load_template(package, self.tokenizer)
        self._switch = StopSwitch()
        try:
            interface = open_interface(manifest, self.context_tokens, kv)
        except (MemoryError, OSError, OverflowError) as error:
            raise MemoryBudgetExceeded(
                "The KV cache does not fit the memory.", f"{error}.", "Load the model with a smaller context."
            ) from error
        corpus = None
        if spec.corpus is not None:
            corpus = Corpus.open(Path(spec.corpus), tokenizer=manifest.files[manifest.tokenizer.file].sha256)
        session = Session(
            package.file(manifest.segments[0].graph),
            threads=threads if threads is not None else pool_size() or usable_cpus(),
            profile=manifest.op_profile,
            isa=isa,
        )
        self._providers, self._isa = session.providers, session.isa
        self._kv_format = interface.kv_format
        self._cache = KVCache(self.context_tokens, row_bytes=interface.row_bytes, row_map=interface.row_map)
        self._runner: ModelRunner | None = ModelRunner(session, interface, self._switch)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        facts = {
            "package_id": package.id,
            "op_profile": manifest.op_profile,
            "isa": self._isa,
            "kv_format": self._kv_format,
            "threads": self.threads,
            "onnxruntime": onnxruntime_version(),
        }
        self.prices = PassPrices(facts, interface, self._cache, costs)
        self.prices.on_measure = on_calibrate
        self._speculation = Speculation(
            spec,
            exact=manifest.op_profile == "native",
            costs=lambda: self.prices.get(self._require_usable()),
            corpus=corpus,
        )
        self.load_ms = 1e3 * (time.perf_counter() - started)

    # --- generation ---

    def generate(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        *,
        cancel: CancelToken | None = None,
        on_token: Callable[[Event], None] | None = None,
        on_prefill_progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> Result:
        """Generate an answer and return it whole.

        Args:
            prompt: a text, taken as it is; token ids; or messages, which go through the chat template.
            config: the options.
            cancel: stops the generation from elsewhere.
            on_token: called with every event; an exception it raises ends the generation and is raised here.
            on_prefill_progress: called with computed and all tokens of the prompt.
            **options: fields of ``GenerationConfig`` that replace those of ``config``.

        Raises:
            Busy, ModelClosed, ContextOverflow, ConfigError, InvalidTemplate, InferenceError, MemoryBudgetExceeded.
        """
        with self.stream(prompt, config, cancel=cancel, on_prefill_progress=on_prefill_progress, **options) as stream:
            for event in stream:
                if on_token is not None:
                    on_token(event)
        return stream.result()

    def stream(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        *,
        cancel: CancelToken | None = None,
        on_prefill_progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> Stream:
        """Generate an answer piece by piece; arguments and errors as in ``generate``."""
        called = time.perf_counter()
        config = (config or GenerationConfig()).with_options(**options)
        return self._stream_ids(self._encode(prompt, config), config, cancel, on_prefill_progress, called)

    async def agenerate(self, prompt: Prompt, config: GenerationConfig | None = None, **options: Any) -> Result:
        """Do ``generate`` in a worker thread; cancelling the task stops the generation."""
        stream = self.astream(prompt, config, **options)
        async for _ in stream:
            pass
        return stream.result()

    def astream(self, prompt: Prompt, config: GenerationConfig | None = None, **options: Any) -> AsyncStream:
        """Do ``stream`` in a worker thread; leaving the ``async for`` or cancelling the task stops the generation."""
        return AsyncStream(self.stream(prompt, config, **options))

    def chat(self, system: str | None = None) -> Chat:
        """Return an empty conversation with this model.

        Raises:
            InvalidTemplate: the model has no chat template.
        """
        return Chat(self, system=system)

    # --- what chats are made of ---

    def render(self, messages: Items[Message], *, add_generation_prompt: bool = True) -> RenderedPrompt:
        """Return messages as the template writes them.

        Raises:
            InvalidTemplate: there is no template, or it refuses the messages.
            ConfigError: the messages are malformed.
        """
        if isinstance(self._template, InvalidTemplate):
            raise self._template
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    @property
    def template_source(self) -> str | None:
        """Source of the chat template in use, or None."""
        return None if isinstance(self._template, InvalidTemplate) else self._template.source

    def stream_ids(
        self,
        token_ids: Items[int],
        config: GenerationConfig,
        *,
        cancel: CancelToken | None = None,
        on_prefill_progress: Callable[[int, int], None] | None = None,
        on_result: Callable[[Result], None] | None = None,
        called: float | None = None,
    ) -> Stream:
        """Generate behind token ids.

        Args:
            token_ids: the prompt.
            config: the options.
            cancel: stops the generation from elsewhere.
            on_prefill_progress: called with computed and all tokens of the prompt.
            on_result: called once with the result, however the generation ends, unless it fails.
            called: moment from which the time to the first token counts, ``time.perf_counter``.
        """
        return self._stream_ids(
            list(token_ids), config, cancel, on_prefill_progress, called or time.perf_counter(), on_result
        )

    def _stream_ids(
        self,
        token_ids: list[int],
        config: GenerationConfig,
        cancel: CancelToken | None,
        on_prefill: Callable[[int, int], None] | None,
        called: float,
        on_result: Callable[[Result], None] | None = None,
    ) -> Stream:
        self._require_usable()
        vocab_size = self.package.manifest.model.vocab_size
        sequence = Sequence(
            token_ids,
            capacity=self.context_tokens,
            max_tokens=config.max_tokens,
            end_ids=self.tokenizer.eos_token_ids,
        )
        sampler = Sampler(config, vocab_size, token_ids)
        mode = self._speculation.resolve(config.spec, has_reference=config.reference is not None, accept=config.accept)
        reference = None
        if config.reference is not None and mode in ("auto", "reference"):
            reference = self.tokenizer.encode_text(config.reference)
        text = TextStream(self.tokenizer.decode_stream(), config.stop)

        def source(token: CancelToken) -> EventSource:
            with self._exclusive(token) as runner, _linked(cancel, token):
                try:
                    drafter, rule = self._drafting(config, mode, reference)
                except Cancelled:
                    # Stopped while passes were measured.
                    drafter, rule = NullDrafter(), accept
                    sequence.finish("cancelled")
                generation = Generation(
                    sequence,
                    runner,
                    self._cache,
                    drafter,
                    sampler,
                    text,
                    chunk=self._chunk,
                    called=called,
                    on_prefill=on_prefill,
                    spec_mode=mode,
                    rule=rule,
                )
                try:
                    return (yield from generation.events(token))
                except GeneratorExit:
                    raise
                except BaseException:
                    # It may have come in the middle of a drafter's work, which would go on from what is half done.
                    self._speculation.forget()
                    raise

        # A token of its own: a stream that is left early must not throw the caller's.
        return Stream(source, CancelToken(), on_result)

    def _drafting(
        self, config: GenerationConfig, mode: str, reference: list[int] | None
    ) -> tuple[Drafter, AcceptanceRule]:
        """Return who drafts for a generation, and which of its tokens stay; called while the model is held."""
        # Greedy decoding has no distribution to keep: both rules keep its text then.
        if config.accept == "ratio" and config.temperature > 0.0:
            sampled = self._speculation.sampled_drafter(config.temperature, config.seed)
            return sampled, sampled.accept
        return self._speculation.drafter(mode, reference), accept

    def refuse_hopeless(self, text: str, config: GenerationConfig) -> None:
        """Refuse a text that cannot fit however it is cut into tokens, before seconds are spent on cutting it.

        Raises:
            ContextOverflow: with the least number of tokens that the text can have.
        """
        least, reserved = self.tokenizer.min_tokens(text), config.max_tokens or 1
        if least + reserved > self.context_tokens:
            raise ContextOverflow(least, reserved, self.context_tokens)

    def _encode(self, prompt: Prompt, config: GenerationConfig) -> list[int]:
        if isinstance(prompt, str):
            self.refuse_hopeless(prompt, config)
            return self.tokenizer.encode_prompt(prompt)
        if isinstance(prompt, np.ndarray):
            prompt = prompt.tolist()
        items: list[Any] = list(prompt) if isinstance(prompt, list | tuple) else [repr(prompt)]
        if items and isinstance(items[0], Mapping):
            rendered = self.render(items)
            self.refuse_hopeless(rendered.plain_text, config)
            return self.tokenizer.encode_rendered(rendered)
        return self._checked_ids(items)

    def _checked_ids(self, items: list[Any]) -> list[int]:
        size = self.package.manifest.model.vocab_size
        wrong = [item for item in items if type(item) is not int or not 0 <= item < size]
        if wrong:
            raise ConfigError(
                "The prompt is neither a text, nor messages, nor token ids.",
                f"It holds {wrong[0]!r:.40}; token ids are whole numbers from 0 to {size - 1}.",
                "Correct it.",
            )
        return items

    @contextmanager
    def _exclusive(self, cancel: CancelToken) -> Generator[ModelRunner]:
        """Hold the model for one generation."""
        self._require_usable()
        if not self._lock.acquire(blocking=False):
            raise Busy(
                "The model is generating already.",
                "One generation at a time per model.",
                "Wait for it, or close its stream.",
            )
        unsubscribe = None
        try:
            runner = self._require_usable()
            self._switch.reset()
            unsubscribe = cancel.on_cancel(self._switch.stop)
            yield runner
        finally:
            if unsubscribe is not None:
                unsubscribe()
            self._lock.release()

    def _require_usable(self) -> ModelRunner:
        if self._runner is None:
            raise ModelClosed("The model is closed.", "", "Load it again.")
        if os.getpid() != self._pid:
            raise InferenceError(
                "The model cannot be used in a forked process.",
                f"It was loaded by process {self._pid}, this is {os.getpid()}.",
                "Load it after the fork, or start processes with 'spawn'.",
            )
        return self._runner

    # --- life ---

    @property
    def threads(self) -> int:
        """Threads that compute, the calling one included."""
        return pool_size() or 1

    @property
    def cached_tokens(self) -> int:
        """Tokens in the KV cache."""
        return self._cache.length

    @property
    def prefill_chunk(self) -> int:
        """Tokens of one pass over a prompt."""
        return self._chunk

    @contextmanager
    def passes(self) -> Generator[tuple[ModelRunner, KVCache]]:
        """Hold the model for passes of one's own over its cache: for measurements and tests.

        Raises:
            Busy: a generation is running.
        """
        with self._exclusive(CancelToken()) as runner:
            yield runner, self._cache

    @property
    def speculation(self) -> Speculation:
        """The drafters, and what they have learned."""
        return self._speculation

    def calibrate(self) -> RowCosts:
        """Measure what passes cost on this machine, anew, and keep it; empties the KV cache.

        Raises:
            Busy: a generation is running.
        """
        with self.passes() as (runner, _):
            costs = self.prices.measure(runner)
            self._speculation.costs = costs
        return costs

    def reset(self) -> None:
        """Empty the KV cache; what the drafters have learned stays.

        Raises:
            Busy: a generation is running.
        """
        with self.passes() as (_, cache):
            cache.truncate(0)

    def describe(self) -> dict[str, Any]:
        """Return what was decided when the model was loaded, as a JSON object."""
        manifest = self.package.manifest
        return {
            "model": manifest.model.name,
            "package": str(self.package.path),
            "package_id": self.package.id,
            "architecture": manifest.model.architecture,
            "parameters": manifest.model.num_parameters,
            "op_profile": manifest.op_profile,
            "activations": manifest.activations,
            "quantisation": dict(manifest.quantisation),
            "context_tokens": self.context_tokens,
            "isa": self._isa,
            "kv_format": self._kv_format,
            "kv_bytes_per_token": self._cache.row_bytes,
            "weights_bytes": manifest.files["weights.bin"].size,
            "device": "cpu",
            "providers": self._providers,
            "threads": self.threads,
            "onnxruntime": onnxruntime_version(),
            "prefill_chunk": self._chunk,
            "speculation": self._speculation.mode,
            "load_ms": self.load_ms,
        }

    def close(self) -> None:
        """Stop a running generation and free the model; does nothing the second time.

        Waits for the pass under way only, so it may be called from any thread and while a stream is half read: that
        stream then ends as a cancelled one.
        """
        runner, self._runner = self._runner, None
        if runner is not None:
            self._switch.stop()
            runner.close()
            self._speculation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load_package(path: Path, **options: Any) -> Model:
    """Open the package at ``path`` and load it; options as of ``Model``."""
    return Model(open_package(path), **options)


@contextmanager
def _linked(outer: CancelToken | None, inner: CancelToken) -> Generator[None]:
    """Throw ``inner`` when ``outer`` is thrown."""
    if outer is None:
        yield
        return
    unsubscribe = outer.on_cancel(inner.cancel)
    try:
        yield
    finally:
        unsubscribe()


def _check_device(device: str) -> None:
    if device == "cuda":
        raise RuntimeUnavailable(
            "This package cannot run on CUDA.", "Its graph computes in float32 on the CPU.", "Use --device cpu."
        )
    if device not in ("auto", "cpu"):
        raise ConfigError("The device is unknown.", f"Got {device!r:.40}.", "Choose auto or cpu.")


def _context_tokens(ctx: int | None, trained: int) -> int:
    if ctx is None:
        return min(trained, DEFAULT_CONTEXT)
    if not 2 <= ctx <= trained:
        raise ConfigError(
            "The context is out of range.",
            f"Got {ctx} tokens; the model was trained for 2 to {trained}.",
            "Choose one in that range.",
        )
    return ctx


def _load_template(package: Package, tokenizer: Tokenizer) -> ChatTemplate | InvalidTemplate:
    """Return the template, or the error that a chat will raise: plain prompts need none."""
    name = package.manifest.chat_template
    try:
        source = package.file(name).read_text(encoding="utf-8") if name is not None else None
    except UnicodeDecodeError as error:
        return InvalidTemplate(f"{package.path}: the chat template is no text.", f"{error}.", "Export the model again.")
    except OSError as error:
        raise StorageError(f"{name} cannot be read.", f"{error.strerror}.", "Check its permissions.") from error
    bos = tokenizer.bos_token_id
    eos = tokenizer.eos_token_ids
    try:
        return ChatTemplate(
            source,
            special_tokens=tokenizer.special_tokens,
            bos_token=(tokenizer.id_to_token(bos) or "") if bos is not None else "",
            eos_token=(tokenizer.id_to_token(eos[0]) or "") if eos else "",
        )
    except InvalidTemplate as error:
        return error
