"""The numbers of a machine and of its GPU that a plan is computed from, amounts of memory, and what a plan decides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from edge_rt.device.cuda import CONTEXT_BYTES, DRIVER_BYTES, PAGE_BYTES
from edge_rt.device.names import DeviceName
from edge_rt.system.byte_size import counted, show_size

USUAL_READS: Final = 5e8
"""Bytes per second that a machine reads whose disk was not measured: a SATA drive, or a phone's flash. A guess."""


@dataclass(frozen=True)
class Amounts:
    """Bytes of the machine's memory, and of a GPU's own.

    Attributes:
        host: of the machine's memory; with unified memory all of them.
        gpu: of the memory of a GPU that has its own.
        heap: how many of ``host`` lie in the heap of a GPU that shares the machine's memory.
    """

    host: int
    gpu: int = 0
    heap: int = 0

    def within(self, limit: Amounts) -> bool:
        """Return whether all fit."""
        return self.host <= limit.host and not self.exceeds_gpu(limit)

    def exceeds_gpu(self, limit: Amounts) -> bool:
        """Return whether a GPU's memory is too small, its own or its heap in the machine's."""
        return self.on_gpu > limit.on_gpu

    @property
    def on_gpu(self) -> int:
        """Bytes that a GPU's memory has to hold: of one of the two kinds, as a GPU has one."""
        return self.gpu + self.heap

    @property
    def both(self) -> int:
        """Their sum."""
        return self.host + self.gpu


@dataclass(frozen=True)
class Choice:
    """The settings that a plan decides.

    Attributes:
        draft_max: most drafted tokens of a pass; 0 with speculation off.
        suffix_tokens: tokens that the suffix drafter (or the n-gram table, or a reference) holds; 0 where none is used.
        recycling_contexts: contexts of each order that token recycling holds; 0 where it is not used.
        drafter: whether the trained drafter of the request, and the model that drafts, are loaded.
        slots: answers that are computed at once.
        kv_rows: rows of the KV cache that several slots share; 0 with one slot, which has a context's.
        expert_bytes: of the cache that experts are read into; None: all of them are resident, or there are none.
        gpu_layers: how many layers, the last ones, a GPU computes whose memory is too small for all; None: not divided.
        checkpoints: states of earlier texts that are kept, where layers have states.
    """

    ctx: int
    kv_format: str
    spec: str
    draft_max: int
    prefill_chunk: int
    suffix_tokens: int
    recycling_contexts: int
    logit_rows: int
    drafter: bool = False
    gpu_layers: int | None = None
    slots: int = 1
    kv_rows: int = 0
    checkpoints: int = 0
    expert_bytes: int | None = None

    @property
    def most_logits(self) -> int:
        """Rows of a pass that need logits, at most: those of drafts, and one for every slot."""
        return self.logit_rows + self.slots - 1

    @property
    def tree_rows(self) -> int:
        """Rows of a pass that verifies the largest draft."""
        return self.draft_max + 1

    @property
    def largest_pass(self) -> int:
        """Rows of the largest pass."""
        return max(min(self.prefill_chunk, self.ctx), self.tree_rows, 1 if self.slots == 1 else 2 * self.slots)

    def in_words(self) -> str:
        """Return a text such as ``"int4 cache, no speculation, context 4096, chunk 64"``."""
        drafting = f"speculation with drafts of {self.draft_max} ({self.spec})" if self.draft_max else "no speculation"
        slots = f", {self.slots} slots" if self.slots > 1 else ""
        more = "" if self.expert_bytes is None else f", {show_size(self.expert_bytes)} of experts"
        more += "" if self.gpu_layers is None else f", {counted(self.gpu_layers, 'layer')} on the GPU"
        return f"{self.kv_format} cache, {drafting}, context {self.ctx}, chunk {self.prefill_chunk}{slots}{more}"


@dataclass(frozen=True)
class GpuFigures:
    """Memory and speed of a GPU.

    Attributes:
        total_bytes: its memory; with unified memory what its driver allows of the machine's, the size of the heap.
        available_bytes: what a process may use of it; with unified memory the machine's figure counts instead.
        bandwidth: sustained bytes per second that it reads.
        step_overhead_s: seconds of a pass beyond reading weights and KV cache.
        is_unified: whether it shares the machine's memory.
        device_name: its name on this machine; None for a GPU of another one.
        context_bytes: of its memory, that its driver takes.
        host_bytes: of the process's memory, that its driver takes.
        chunk_bytes: of its memory, in which sessions keep what kernels of a pass are given; 0: the driver has it.
        page_bytes: of which its driver gives whole ones for more than 1 MiB; 0: it gives what it is asked for.
        has_cpu_bits: whether its results are the CPU's to the last bit, so that layers can be divided between the two.
        imports: whether it reads weights where their file is mapped, because it shares the machine's memory.
        is_software: whether it is a program on the CPU, of whose speed nothing is known before it was measured.
    """

    name: str
    total_bytes: int
    available_bytes: int
    bandwidth: float
    step_overhead_s: float
    row_cost: tuple[tuple[int, float], ...]
    is_unified: bool = False
    device_name: DeviceName | None = None
    context_bytes: int = CONTEXT_BYTES
    host_bytes: int = DRIVER_BYTES
    chunk_bytes: int = 0
    page_bytes: int = PAGE_BYTES
    has_cpu_bits: bool = True
    imports: bool = False
    is_software: bool = False


@dataclass(frozen=True)
class Device:
    """Memory and speed of a machine.

    Attributes:
        name: name of the preset or of the saved device.
        bandwidth: sustained bytes per second that all threads read together.
        step_overhead_s: seconds of a pass beyond reading weights and KV cache.
        row_cost: pairs of (rows, latency of a pass over them relative to one row); starts with (1, 1.0), ascending, at
            least two pairs.
        base_bytes: resident memory of a process after the imports that a load needs; None uses ``terms.BASE_BYTES``.
        gpu: the GPU that computes; None: the CPU does.
        read_bandwidth: bytes per second that are read of a file, past the system's cache.
    """

    name: str
    total_bytes: int
    available_bytes: int
    bandwidth: float
    step_overhead_s: float
    row_cost: tuple[tuple[int, float], ...]
    base_bytes: int | None = None
    is_measured: bool = False
    threads: int = 4
    gpu: GpuFigures | None = None
    read_bandwidth: float = USUAL_READS

    def problem(self) -> str | None:
        """Return what is wrong with the numbers, or None."""
        if self.base_bytes is not None and self.base_bytes <= 0:
            return f"base_bytes is {self.base_bytes}, must be above 0"
        own = _problem(
            self, ("total_bytes", "available_bytes", "bandwidth", "step_overhead_s", "threads", "read_bandwidth")
        )
        if own is not None or self.gpu is None:
            return own
        found = _problem(self.gpu, ("total_bytes", "available_bytes", "bandwidth", "step_overhead_s"))
        return None if found is None else f"of its GPU {found}"

    @property
    def computes(self) -> Device | GpuFigures:
        """What computes: the GPU, if there is one."""
        return self if self.gpu is None else self.gpu

    @property
    def has_own_gpu_memory(self) -> bool:
        """Whether a GPU computes that has memory of its own."""
        return self.gpu is not None and not self.gpu.is_unified

    @property
    def divides_layers(self) -> bool:
        """Whether a GPU with memory of its own may compute some layers, and the CPU the others, with the same bits."""
        return self.has_own_gpu_memory and self.gpu is not None and self.gpu.has_cpu_bits


def _problem(figures: Device | GpuFigures, names: tuple[str, ...]) -> str | None:
    for name in names:
        value = getattr(figures, name)
        if not (math.isfinite(value) and value > 0):
            return f"{name} is {value}, must be above 0"
    rows, costs = [row for row, _ in figures.row_cost], [cost for _, cost in figures.row_cost]
    if len(rows) < 2 or (rows[0], costs[0]) != (1, 1.0):
        return "row_cost must begin with (1, 1.0) and have a second pair"
    if rows != sorted(set(rows)) or costs != sorted(costs) or not math.isfinite(costs[-1]):
        return "row_cost must rise"
    return None
