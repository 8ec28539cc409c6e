"""The options of a load: one dataclass, passed from the command line and ``edge_rt.load`` down to the model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edge_rt.device.installed import INSTALLED
from edge_rt.device.names import AUTO as AUTO_DEVICE, CPU, ON_CPU, ON_DEVICE_ERROR, RAISES, DeviceChoice, DeviceName
from edge_rt.device.provider import GpuProviders
from edge_rt.errors import ConfigError
from edge_rt.memory.budget import Budget
from edge_rt.memory.device import local_device
from edge_rt.memory.plan import Plan
from edge_rt.package.expert_sizes import AUTO_EXPERTS, RESIDENT
from edge_rt.package.spec_modes import require_draft_max, require_mode
from edge_rt.system.byte_size import parse_size
from edge_rt.system.option_names import known_fields

if TYPE_CHECKING:
    from edge_rt.ort.expert_cache import ReadAt
    from edge_rt.runtime.config import GenerationConfig
    from edge_rt.runtime.prompts import PromptEncoder
    from edge_rt.runtime.speculation.adaptive import Trace
    from edge_rt.runtime.speculation.cost_model import CostStore

Memory = int | str | Budget | None
"""A memory budget: bytes, a text such as ``"600MiB"``, a ``Budget`` that several models share, or None for what is
available.
"""

MOST_SLOTS: Final = 64
"""What may be done where a GPU fails in the middle of an answer."""
_DECIDED: Final = (
    "device_memory", "ctx", "threads", "prefill_chunk", "kv", "spec", "draft_max", "corpus", "drafter",
    "slots", "kv_rows", "experts",
)  # fmt: skip
"""Options that a plan decides, besides ``memory``."""


@known_fields()
@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How a model is loaded; None leaves a choice to the plan.

    Attributes:
        memory: budget of resident memory for the process: bytes, a text such as ``"600MiB"``, or a ``Budget`` that
            several models share. None: what the machine has available. Options that are given below are kept, or the
            load is refused; of ``slots`` as many as fit. What is left open is reduced until the model fits: first
            speculation, then the precision of the cache, then context.
        device_memory: budget of the memory of a GPU that has its own: bytes, or a text; None: what is free there.
        ctx: capacity of the context in tokens; None: the model's own, up to 8192, if that fits.
        threads: None takes every CPU that this process may use; there is one number for the whole process.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"vulkan"``, ``"vulkan:1"`` or ``"webgpu"``; ``"auto"`` or None: a
            GPU where passes of the package that were measured, among ``costs``, say that it is faster, else the CPU.
            With a plan it is the device of the plan.
        on_device_error: what is done where a GPU fails, or has no memory left, in the middle of an answer: ``"error"``
            raises, ``"cpu"`` goes on with the CPU, with the same text; later answers stay there. Native packages only.
        prefill_chunk: tokens of one pass over a prompt.
        kv: format of the KV cache, one of those that ``edge-rt inspect`` shows; ``"auto"`` takes the fastest that fits,
            None the package's default, if it fits.
        isa: instruction set of the native operators, one of those that ``edge-rt doctor`` shows; None takes the best.
        spec: speculation: ``"auto"`` (off in the portable op profile), ``"off"``, or one drafter: ``"ngram"``,
            ``"suffix"``, ``"recycling"``, ``"reference"``, ``"head"``, ``"exit"``, ``"self"``, ``"model:PACKAGE"``;
            None takes ``"auto"`` if it fits.
        draft_max: most drafted tokens of a pass; None leaves the choice to the plan and the cost model.
        corpus: file of ``edge-rt corpus build`` for the suffix drafter; with ``spec`` None, ``"auto"`` or ``"suffix"``.
        drafter: folder of a trained drafter; with ``spec`` None, ``"auto"`` or the drafter's kind. None takes one that
            fits, from the package's folder or from those installed with edge-rt. With ``"auto"`` it may be a package
            with the same tokenizer, which then drafts as well. ``"none"``: no trained one is used.
        spec_trace: called with every decoding step's decision.
        on_calibrate: called when the first answer has to wait for a measurement of costs on this machine, which takes a
            second or two, with the name of what is measured: ``"passes"``, and of what drafts besides.
        on_compile: called when the kernels for a GPU have to be compiled first, which may take a minute, with whether
            they are kept for later loads.
        on_plan: called with the plan before anything is loaded.
        on_takeover: called with what computes now when the CPU has taken the place of a GPU that failed, in the thread
            that computes.
        on_load: called with the name of what has just been loaded: ``"tokenizer"``, ``"cache"``, ``"session"``,
            ``"drafter"``.
        costs: where measured costs of passes are stored; None keeps them in memory only.
        tokenizer_readings: folder of what was read of tokenizers that were checked before; None: a tokenizer is parsed
            and checked at every load.
        plan: a plan made earlier for the package, to be carried out unchanged. Options that it decides must not be
            given again, but ``memory`` may be a ``Budget`` that the model's share is taken from.
        share_tokenizer_with: tokenizer and template of another model (``Model.texts``), shared if this package has the
            same tokenizer. The memory of a process that loads repeatedly then grows less.
        freed_device_bytes: memory of GPUs that the models give back which the new one replaces: GPU -> bytes.
        base_bytes: memory that this process held before its first model, if the new model replaces all that are loaded;
            None: the memory that it holds now.
        slots: answers that are computed at once, 1 to 64; further ones wait. None: one generation at a time, a second
            one raises ``Busy``. What computes one sequence at a time lets all others wait.
        kv_rows: with slots, rows of the KV cache that they share, at least those of a context. None: a whole context
            for each slot, if that fits.
        max_queue: with slots, generations that may wait; one more raises ``QueueFull``. None: any number.
        experts: ``"resident"``: all experts of a model in memory; a size, in bytes or a text: a cache of so much that
            they are read into when they are wanted; ``"auto"`` or None: resident if they fit with the whole context,
            else a cache of what the budget leaves.
        usual_experts: ``experts`` if that is None, of models that have some on the device that computes; ignored for
            others, which refuse ``experts``.
        usual_device_memory: ``device_memory`` if that is None, of models on a GPU that has memory of its own; ignored
            for others, which refuse ``device_memory``.
        expert_reader: takes the place of reading the file of weights into that cache, as
            ``edge_rt.ort.expert_cache.ReadAt``.
        hidden: whether passes return hidden states (``Outputs.hidden``), for programs that run passes of their own;
            native packages only.
        formats: whether the plan keeps room for answers in a format; else their tables take what is left of the budget
            when the first is asked for.
        prompt_cache: folder that keeps rows of prompts, for later ones that begin alike; None: nothing is written.
        prompt_cache_size: bytes that the folder may have, or a text; what was not used for the longest time goes.
            None: 2 GiB.
        config: what answers take that are given no ``GenerationConfig``; None: the model's own options.
        system: system message of conversations that are given none.
        unverified: whether drafts are allowed on a device where no ``edge-rt verify`` of the package has passed, which
            is what ``verify`` itself needs.
        gpu_providers: edge-rt's own execution providers, for ``"cuda"`` and ``"vulkan"``.
        spell: formats the flags of a setting that fits, for an error; None: as arguments of ``edge_rt.load``.
        device_name: the device, read.

    Raises:
        ConfigError: a value is out of range, or is given although the plan has decided it; or an option of that name
            does not exist.
    """

    memory: Memory = None
    device_memory: int | str | None = None
    ctx: int | None = None
    threads: int | None = None
    device: str | DeviceName | None = AUTO_DEVICE
    on_device_error: str = RAISES
    prefill_chunk: int | None = None
    kv: str | None = None
    isa: str | None = None
    spec: str | None = None
    draft_max: int | None = None
    corpus: Path | None = None
    drafter: Path | None = None
    spec_trace: Trace | None = None
    on_calibrate: Callable[[str], None] | None = None
    on_compile: Callable[[bool], None] | None = None
    on_plan: Callable[[Plan], None] | None = None
    on_takeover: Callable[[DeviceChoice], None] | None = None
    on_load: Callable[[str], None] | None = None
    costs: CostStore | None = None
    tokenizer_readings: Path | None = None
    plan: Plan | None = None
    share_tokenizer_with: PromptEncoder | None = None
    base_bytes: int | None = None
    freed_device_bytes: Mapping[DeviceName, int] = field(default_factory=dict)
    slots: int | None = None
    kv_rows: int | None = None
    max_queue: int | None = None
    experts: int | str | None = None
    usual_experts: int | str | None = None
    usual_device_memory: int | str | None = None
    expert_reader: ReadAt | None = None
    hidden: bool = False
    config: GenerationConfig | None = None
    system: str | None = None
    formats: bool = False
    prompt_cache: Path | None = None
    prompt_cache_size: int | str | None = None
    unverified: bool = False
    gpu_providers: GpuProviders = INSTALLED
    spell: Callable[[tuple[str, ...]], str] | None = None
    device_name: DeviceName = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("corpus", "drafter", "prompt_cache"):
            if isinstance(path := getattr(self, name), str):
                object.__setattr__(self, name, Path(path))
        device = AUTO_DEVICE if self.device is None else self.device
        if not isinstance(device, DeviceName):
            device = local_device(device)
        object.__setattr__(self, "device_name", device)
        if self.on_device_error not in ON_DEVICE_ERROR:
            raise ConfigError(
                "The option 'on_device_error' (--on-device-error) is neither error nor cpu.",
                f"Got {self.on_device_error!r:.40}.",
                'Give "error" to raise, or "cpu" to go on with the CPU.',
            )
        if self.slots is not None and not 1 <= self.slots <= MOST_SLOTS:
            raise ConfigError(
                "The number of slots is out of range.", f"Got {self.slots!r:.40}.", f"Give 1 to {MOST_SLOTS}."
            )
        if self.max_queue is not None and self.max_queue < 0:
            raise ConfigError(
                "The number of generations that may wait is out of range.",
                f"Got {self.max_queue!r:.40}.",
                "Give 0 or more, or None for any number.",
            )
        if self.max_queue is not None and self.slots is None and self.plan is None:
            raise ConfigError(
                "Generations wait for slots only, and there are none.",
                f"Got max_queue={self.max_queue} without slots.",
                "Give slots as well, or leave it out.",
            )
        if self.kv_rows is not None:
            if self.kv_rows < 1:
                raise ConfigError(
                    "The number of rows of the KV cache is out of range.",
                    f"Got {self.kv_rows!r:.40}.",
                    "Give those of a context at least, or None.",
                )
            if (self.slots or 1) == 1:
                raise ConfigError(
                    "Rows of the KV cache are shared by several slots only.",
                    f"Got {self.kv_rows} rows and {self.slots or 1} slot, which has those of a context.",
                    "Give more slots, or a context (--ctx, ctx=) instead.",
                )
        _experts_of(self.experts)
        _experts_of(self.usual_experts)
        if self.spec is not None:
            require_mode(self.spec)
        if self.draft_max is not None:
            require_draft_max(self.draft_max)
        if self.prompt_cache_size is not None:
            if self.prompt_cache is None:
                raise ConfigError(
                    "A size of a prompt cache is given, but no prompt cache.",
                    f"Got {self.prompt_cache_size!r:.40}.",
                    "Give its folder as well.",
                )
            parse_size(self.prompt_cache_size)
        if self.plan is not None:
            self._refuse_twice(self.plan)

    def _refuse_twice(self, plan: Plan) -> None:
        given = [name for name in ("memory", *_DECIDED) if getattr(self, name) is not None]
        if isinstance(self.memory, Budget):
            given.remove("memory")
        given += [name for name in ("hidden", "formats") if getattr(self, name)]
        if self.prompt_cache is not None and not plan.request.prompt_cache:
            raise ConfigError(
                "The plan has no room for rows of stored prompts.",
                "It was made without 'prompt_cache'.",
                "Give that to edge_rt.plan, too.",
            )
        if given:
            raise ConfigError(
                "The plan has already decided these options.",
                f"Given together with it: {', '.join(given)}.",
                "Give them to edge_rt.plan.",
            )

    def but(self, **changes: Any) -> LoadOptions:
        """Return the options with some replaced."""
        return dataclasses.replace(self, **changes)

    def on_cpu(self, plan: Plan, texts: PromptEncoder | None) -> LoadOptions:
        """Return the options for a model on the CPU that takes the place of one on a GPU, in the midst of its text.

        Context, cache format and passes are those of the plan, or the text could not go on; slots are as many as fit.

        Args:
            plan: the GPU's.
            texts: the model's tokenizer and template, which it shares.
        """
        request, choice = plan.request, plan.choice
        return self.but(
            device=ON_CPU,
            on_device_error=RAISES,
            device_memory=None,
            freed_device_bytes={},
            plan=None,
            memory=request.budget_bytes if self.memory is None else self.memory,
            ctx=choice.ctx,
            kv=choice.kv_format,
            threads=plan.device.threads,
            prefill_chunk=choice.prefill_chunk,
            spec=request.spec,
            draft_max=request.draft_max,
            corpus=None if request.corpus is None else Path(request.corpus),
            drafter=None if request.drafter_folder is None else Path(request.drafter_folder),
            hidden=request.hidden,
            formats=request.formats,
            slots=choice.slots if choice.slots > 1 else None,
            kv_rows=request.kv_rows if choice.slots > 1 else None,
            max_queue=None,
            base_bytes=None,
            share_tokenizer_with=texts,
            on_plan=None,
            on_load=None,
        )

    def on_measuring(self, what: str) -> Callable[[], None] | None:
        """Return what is called when the costs of something are measured; None: nobody wants to know."""
        return None if self.on_calibrate is None else functools.partial(self.on_calibrate, what)

    def planned_experts(self, *, has_some: bool) -> int | str | None:
        """Return where experts are, for a plan: None: it decides; ``"resident"``; or bytes of a cache.

        Args:
            has_some: whether there are some that may be read while the model runs.
        """
        return _experts_of(self.usual_experts if self.experts is None and has_some else self.experts)

    @property
    def budget(self) -> Budget | None:
        """The budget that models share; None: each has its own, or none."""
        return self.memory if isinstance(self.memory, Budget) else None

    @property
    def budget_bytes(self) -> int | None:
        """Bytes of the memory budget; None: there is none.

        Raises:
            ConfigError: it is not a size.
        """
        if self.memory is None:
            return None
        return (self.memory if isinstance(self.memory, Budget) else Budget(self.memory)).total_bytes


def _experts_of(asked: int | str | None) -> int | str | None:
    if asked in (None, AUTO_EXPERTS):
        return None
    if asked == RESIDENT:
        return RESIDENT
    try:
        return parse_size(asked)
    except ConfigError as error:
        raise ConfigError(
            "The option 'experts' (--experts) is not auto, resident or a size.",
            error.numbers,
            'Write it as "auto", "resident", or a size such as "2GiB".',
        ) from error


def require_rows_here(plan: Plan, options: LoadOptions) -> None:
    """Refuse a plan for a GPU where rows of prompts are to be kept in a folder."""
    if options.prompt_cache is not None and (gpu := plan.device.gpu) is not None:
        raise ConfigError(
            "A prompt cache cannot be used on a GPU.",
            f"The rows are in the memory of {gpu.name}, and none are stored from there.",
            f"Leave it out, or use the device {CPU}.",
        )
