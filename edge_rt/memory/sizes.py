"""The bytes of every part of a running model together, and the peaks that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edge_rt.memory.activations import thread_bytes
from edge_rt.memory.figures import Amounts, Choice, Device, GpuFigures
from edge_rt.memory.request import Request
from edge_rt.memory.shape import DraftModelShape, ModelShape
from edge_rt.memory.terms import (
    GROWN,
    SECOND_SESSION,
    SESSION_FIXED,
    TableBytes,
    ahead_bytes,
    corpus_bytes,
    dense_bytes,
    divided_hidden_bytes,
    divided_kv_bytes,
    divided_state_bytes,
    divided_weights,
    drafter_bytes,
    drafting_bytes,
    drafts_itself,
    format_bytes,
    graphs_begun,
    hidden_bytes,
    kv_bytes,
    largest_copied,
    logits_bytes,
    mapped_again_bytes,
    packed_bytes,
    packing_bytes,
    passes_bytes,
    reading_bytes,
    runtime_bytes,
    sampling_bytes,
    session_bytes,
    slots_bytes,
    state_bytes,
    stored_block_bytes,
    table_bytes,
    tokenizer_bytes,
    weights_bytes,
)

if TYPE_CHECKING:
    from edge_rt.memory.gpu_terms import GpuSizes


@dataclass(frozen=True)
class Sizes:
    """Bytes of every part of a running model, each at its largest.

    Attributes:
        drafter_head: its reduced head, its states and what its steps need.
        draft_model: everything else of that model: graph, cache, activations, a row of logits.
        draft: activations of a pass that verifies the largest draft.
        reading: bytes of the process while the tokenizer is read, before later parts are touched.
        packing: bytes of the process while ONNX Runtime builds the graph, before later parts are touched.
        one_logit_row: bytes of the outputs of one row; prefill needs no more than one.
        gpu: what lies on a GPU, which the parts above then do not count; None: the CPU computes.
        driver: of the runtime part, what is counted for the driver of GPUs.
        formats: tables of answers in a format.
        prompt_cache: a block of rows on its way from or to a file.
        slots: tables of several slots.
        states: of layers that have some.
        experts: the cache that they are read into.
        in_place: of the weights, what a GPU that shares the machine's memory reads where the file is mapped.
    """

    runtime: int
    tokenizer: int
    weights: int
    corpus: int
    session: int
    kv_cache: int
    chunk: int
    draft: int
    logits: int
    sampling: int
    drafters: int
    drafter: int
    drafter_head: int
    draft_weights: int
    draft_model: int
    tables: TableBytes
    reading: int
    packing: int
    one_logit_row: int
    gpu: GpuSizes | None = None
    is_unified: bool = False
    driver: int = 0
    formats: int = 0
    prompt_cache: int = 0
    slots: int = 0
    states: int = 0
    experts: int = 0
    in_place: int = 0

    @property
    def activations(self) -> int:
        """Bytes of all passes: an arena keeps the memory of the largest pass."""
        return max(self.chunk, self.draft)

    @property
    def running(self) -> int:
        """Bytes of all parts together."""
        return self._held + self.activations + self.logits

    @property
    def load_excess(self) -> int:
        """Bytes that loading briefly needs beyond the peak of running."""
        return max(0, max(self.reading, self.packing) - self.running)

    @property
    def total(self) -> int:
        """Peak memory of the machine in bytes: of the process, and of a GPU that shares it."""
        return self.running + self.load_excess

    @property
    def unified_context(self) -> int:
        """Bytes that the driver takes of a GPU that shares the machine's memory; 0 on others."""
        return self.gpu.context if self.gpu is not None and self.is_unified else 0

    @property
    def needs(self) -> Amounts:
        """The machine's memory, and that of a GPU: its own, or its heap, also for weights whose import may fail."""
        if self.gpu is None:
            return Amounts(self.total)
        if self.is_unified:
            return Amounts(self.total, heap=self.gpu.total + self.in_place)
        return Amounts(self.total, self.gpu.total)

    @property
    def regimes(self) -> Regimes:
        """The memory peaks that have to fit, each separately."""
        return Regimes(
            load=max(self.reading, self.packing),
            prefill=self._held + self.chunk + self.one_logit_row,
            decode=self.running,
        )

    @property
    def _held(self) -> int:
        """Bytes besides the passes. A first answer may draft, so tables may be full before the last prompt."""
        mapped = self.weights + self.corpus + self.drafter + self.draft_weights
        drafting = self.drafters + self.drafter_head + self.draft_model
        shared = self.gpu.total if self.gpu is not None and self.is_unified else 0
        chosen = self.sampling + self.formats + self.prompt_cache + self.slots + self.states + self.experts
        own = self.runtime + self.tokenizer + mapped + self.session + self.kv_cache + chosen + drafting
        return own + shared


@dataclass(frozen=True)
class Regimes:
    """Bytes at the memory peaks that have to fit, each separately.

    Attributes:
        load: while tokenizer and graph are read, before weights and cache are touched.
        prefill: while the last chunk of a prompt that fills the context is computed.
        decode: while the largest draft is verified in a full context.
    """

    load: int
    prefill: int
    decode: int

    @property
    def largest(self) -> str:
        """Name of the regime that needs the most memory."""
        named = {"load": self.load, "prefill": self.prefill, "decode": self.decode}
        return max(named, key=named.__getitem__)


def sizes_of(shape: ModelShape, device: Device, choice: Choice, request: Request) -> Sizes:
    """Return the bytes of every part.

    Args:
        request: the request, for the memory that the process already holds, the corpus, hidden states and a trained
            drafter.
    """
    driver = request.driver_bytes
    if driver is None:
        driver = 0 if device.gpu is None else device.gpu.host_bytes
    base = runtime_bytes(device, request.resident_bytes) + driver
    tokenizer, session = tokenizer_bytes(shape, choice.ctx), session_bytes(shape, choice.ctx)
    # Passes of other sizes use other places of the arena, so in time everything that the largest allocates is touched.
    own = thread_bytes(shape, device.threads)
    hidden = request.returns_hidden(choice)
    drafter = request.drafter if choice.drafter else None
    second = _draft_model_bytes(request.draft_model, device, choice) if choice.drafter else (0, 0)
    chunk = choice.largest_pass if choice.slots > 1 else min(choice.prefill_chunk, choice.ctx)
    tables = table_bytes(choice.spec)
    sizes = Sizes(
        runtime=base,
        tokenizer=tokenizer,
        weights=dense_bytes(shape, choice, request),
        experts=choice.expert_bytes or 0,
        corpus=corpus_bytes(choice, request),
        session=session + packed_bytes(shape) + hidden_bytes(shape, choice),
        kv_cache=kv_bytes(shape, choice),
        chunk=own + passes_bytes(shape, chunk, choice.ctx, choice.slots),
        draft=own + passes_bytes(shape, choice.tree_rows, choice.ctx),
        logits=logits_bytes(shape, choice.most_logits, hidden=hidden),
        sampling=sampling_bytes(shape),
        drafters=drafter_bytes(choice, tables, of_itself=drafts_itself(shape, choice)) + ahead_bytes(shape, choice),
        drafter=0 if drafter is None else drafter.weights_bytes,
        drafter_head=0 if drafter is None else drafter.private_bytes(choice.ctx),
        draft_weights=second[0],
        draft_model=second[1],
        tables=tables,
        reading=base + session + max(reading_bytes(shape), tokenizer),
        packing=base + session + tokenizer + packing_bytes(shape),
        one_logit_row=logits_bytes(shape, 1, hidden=hidden),
        driver=driver,
        formats=format_bytes(shape.model.vocab_size) if request.formats else 0,
        prompt_cache=stored_block_bytes(shape, choice) if request.prompt_cache else 0,
        slots=slots_bytes(shape, choice),
        states=state_bytes(shape, choice),
    )
    if device.gpu is None:
        return sizes
    on_gpu = _on_gpu(replace(sizes, weights=drafting_bytes(shape, choice, request)), shape, choice, device.gpu)
    return on_gpu if choice.gpu_layers is None else _divided(on_gpu, sizes, shape, choice)


def _on_gpu(sizes: Sizes, shape: ModelShape, choice: Choice, figures: GpuFigures) -> Sizes:
    """Return the sizes with the model's weights, cache, activations and logits on a GPU.

    Logits are copied to the process. Weights that the GPU reads where their file is mapped count as the process's;
    others are read into its memory in pieces. What ONNX Runtime copies where layers are divided is here twice
    meanwhile, mapped and in a buffer, one tensor after the other.
    """
    # Imported here: most plans are for the CPU.
    from edge_rt.memory.gpu_terms import (
        PIECE,
        GpuSizes,
        gpu_activations,
        gpu_kv_bytes,
        gpu_pieces,
        gpu_state_bytes,
        gpu_weights,
        laid_bytes,
        staging_bytes,
    )

    is_whole = choice.gpu_layers is None
    in_place = laid_bytes(shape) if figures.imports and is_whole else 0
    gpu = GpuSizes(
        context=figures.context_bytes,
        weights=gpu_weights(shape, choice) - in_place,
        kv_cache=gpu_kv_bytes(shape, choice, figures.page_bytes),
        activations=gpu_activations(shape, choice) + gpu_pieces(shape, choice, figures.chunk_bytes),
        logits=sizes.logits,
        states=gpu_state_bytes(shape, choice, figures.page_bytes),
    )
    read = PIECE if is_whole else PIECE + 2 * largest_copied(shape, choice)
    staging = staging_bytes(shape, choice, figures.chunk_bytes)
    return replace(
        sizes,
        session=sizes.session - hidden_bytes(shape, choice),
        weights=sizes.weights + in_place,
        kv_cache=0,
        states=0,
        chunk=staging,
        draft=staging,
        packing=sizes.packing + (in_place or read) + (gpu.loaded if figures.is_unified else 0),
        gpu=gpu,
        is_unified=figures.is_unified,
        in_place=in_place,
    )


def _divided(on_gpu: Sizes, on_cpu: Sizes, shape: ModelShape, choice: Choice) -> Sizes:
    """Return the sizes with the first layers in the process, and the others on a GPU."""
    assert on_gpu.gpu is not None
    return replace(
        on_gpu,
        weights=on_gpu.weights + divided_weights(shape, choice)[0] + mapped_again_bytes(shape, choice),
        session=on_gpu.session + divided_hidden_bytes(shape, choice)[0],
        kv_cache=divided_kv_bytes(shape, choice),
        states=divided_state_bytes(shape, choice),
        chunk=GROWN * graphs_begun(shape, choice) * on_cpu.chunk,
        draft=GROWN * graphs_begun(shape, choice) * on_cpu.draft,
    )


def _draft_model_bytes(second: DraftModelShape | None, device: Device, choice: Choice) -> tuple[int, int]:
    """Return the mapped and the private bytes of a second model, whose code and threads the first one has already."""
    if second is None:
        return 0, 0
    shape, own = second.shape, second.choice(choice)
    session = session_bytes(shape, own.ctx) - SESSION_FIXED + SECOND_SESSION
    # Beside passes on a GPU it drafts on a thread of its own.
    threads = device.threads + (device.gpu is not None)
    passes = thread_bytes(shape, threads) + passes_bytes(shape, own.largest_pass, own.ctx)
    caches = kv_bytes(shape, own) + state_bytes(shape, own)
    return weights_bytes(shape, own.ctx), session + caches + passes + logits_bytes(shape, 1)
