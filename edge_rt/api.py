"""The Python API: models by path or name, pulled, listed, removed, planned and loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_rt.errors import ConfigError, ModelNotFound, VersionMismatch
from edge_rt.memory.plan import Plan
from edge_rt.package.reader import Package, absolute_path, is_package, open_package
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.load.options import LoadOptions, Memory as MemoryBudget, require_rows_here
from edge_rt.runtime.load.planning import plan_package
from edge_rt.runtime.model import Model
from edge_rt.runtime.prompts import PromptEncoder
from edge_rt.runtime.speculation.cost_model import user_costs
from edge_rt.system.byte_size import parse_limit
from edge_rt.system.json_files import user_cache
from edge_rt.system.notebooks import usual_progress
from edge_rt.system.option_names import known_options

if TYPE_CHECKING:
    from edge_rt.store.config import Preset
    from edge_rt.store.layout import RemovedReport, StoreEntry
    from edge_rt.store.pull import PullReport
    from edge_rt.system.progress import ProgressCallback


@known_options()
def load(
    model: str | Path,
    *,
    memory: MemoryBudget = None,
    device_memory: int | str | None = None,
    experts: int | str | None = None,
    ctx: int | None = None,
    threads: int | None = None,
    device: str | None = "auto",
    on_device_error: str = "error",
    store: str | Path | None = None,
    pull: bool = False,
    prefill_chunk: int | None = None,
    kv: str | None = None,
    isa: str | None = None,
    spec: str | None = None,
    draft_max: int | None = None,
    corpus: str | Path | None = None,
    drafter: str | Path | None = None,
    prompt_cache: str | Path | None = None,
    prompt_cache_size: int | str | None = None,
    slots: int | None = None,
    kv_rows: int | None = None,
    max_queue: int | None = None,
    formats: bool = False,
    spec_trace: Callable[[dict[str, Any]], None] | None = None,
    on_calibrate: Callable[[], None] | None = None,
    plan: Plan | None = None,
    share_tokenizer_with: Model | PromptEncoder | None = None,
) -> Model:
    """Load a package.

    Args:
        model: folder of a package, or the name of one in the store. With ``pull``, everything that ``edge_rt.pull``
            takes. The name of a preset of the configuration file: its model, with its ``memory`` and ``ctx`` where none
            are given here, its options for answers that are given no ``GenerationConfig``, and its system message for
            conversations that are given none.
        memory: budget of resident memory for the process: bytes, a text such as ``"600MiB"``, or a ``Budget`` that
            several models share. None: what the machine has available. A setting given below is kept, or the load is
            refused. Settings left at None are reduced until the model fits: first speculation is turned off, then the
            KV cache is quantised, then the context is shortened.
        device_memory: budget of the memory of a GPU that has its own, bytes or a text; None: what is free there. Where
            the GPU shares the machine's memory there is one budget, ``memory``.
        experts: of models with experts: ``"resident"``: all of them in memory; a size, bytes or a text: a cache of so
            much that they are read into; ``"auto"`` or None: resident if they fit with the whole context, else a cache
            of what the budget leaves.
        ctx: capacity of the context in tokens; None lets the plan choose: the model's own, up to 8192, if that fits.
        threads: threads that compute; None uses every CPU this process may use. All models of a process use the same
            number.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"vulkan"``, or ``"webgpu"`` for portable packages. ``"auto"`` or
            None: a GPU where measured passes of this package say that it is faster, else the CPU;
            ``Model.device_choice`` has what there is to say about it.
        on_device_error: what is done where a GPU is lost, does not answer or has no memory left in the middle of an
            answer: ``"error"`` raises ``DeviceLost``, ``DeviceHung`` or ``DeviceMemoryExhausted``; ``"cpu"`` computes
            the conversation again on the CPU and goes on there with the same text, which ``Result.warnings`` says.
            Later answers stay there. Native packages only.
        store: folder of the store; None takes the configured one.
        pull: if there is no such package, fetch the model and export it into the store first, as the command line does.
            This process then takes the memory of an export before that of the model.
        prefill_chunk: tokens of one prefill pass over a prompt; None lets the plan choose.
        kv: format of the KV cache, one of those that ``edge-rt inspect`` shows; ``"auto"`` takes the fastest that fits,
            None the package's default, if it fits.
        isa: instruction set of the native operators, one of those that ``edge-rt doctor`` shows; None is the best.
        spec: speculation: ``"auto"`` (off in the portable profile), ``"off"``, or one drafter: ``"ngram"``,
            ``"suffix"``, ``"recycling"``, ``"reference"``, ``"head"``, ``"exit"``, ``"self"``, ``"mtp"``,
            ``"model:PACKAGE"``; None is ``"auto"``, if it fits.
        draft_max: most drafted tokens of a pass; None lets the plan and the cost model choose.
        corpus: file of ``edge-rt corpus build`` for the suffix drafter; with ``spec`` None, ``"auto"`` or ``"suffix"``.
        drafter: folder of a trained drafter; with ``spec`` None, ``"auto"`` or the drafter's kind. None takes one that
            fits, from the package's folder or from those installed with edge-rt. With ``"auto"`` it may be a package
            with the same tokenizer, which then drafts as well. ``"none"``: no trained one is used.
        prompt_cache: folder in which rows of prompts are kept on disk, for this user only: a later prompt that begins
            like one of them, in this process or another, computes what is new. None: nothing is written.
        prompt_cache_size: bytes that the folder may have, or a text; what was not used for the longest time goes.
            None: 2 GiB.
        slots: answers that are computed at once, 1 to 64; further ones wait. What computes one sequence at a time
            (GPUs, packages that are not native, or have exits) lets all others wait. None: one generation at a time, a
            second one raises ``Busy``.
        kv_rows: with ``slots``, rows of the KV cache that they share, at least those of a context. None: a whole
            context for each slot, if that fits.
        max_queue: with ``slots``, generations that may wait; one more raises ``QueueFull``, which estimates when there
            is room. None: any number.
        formats: keep room in the plan for answers in a format; else their tables take what is left of the budget.
        spec_trace: called with the decision of every decoding step.
        on_calibrate: called when the first answer has to wait until the latency of passes is measured: with networks
            that draft but heads, and on a GPU. That takes a second or two, and its result is kept.
        plan: a plan that ``edge_rt.plan`` made for this package, followed as it is; ``"auto"`` is then its device.
            Arguments that the plan decides must then not be given again, but ``memory`` may be a ``Budget`` that the
            model's share is taken from.
        share_tokenizer_with: another model (or its ``Model.texts``, which outlives it), whose tokenizer is shared if
            this package has the same one. Reading a tokenizer fragments the heap, so a process that loads many models
            grows less if they share one.

    Raises:
        ModelNotFound: there is no such package, or with ``pull`` no such model.
        InputError: the package cannot be used.
        ConfigError: an argument does not exist, is out of range, does not apply to this package, has no effect with
            ``spec``, or is already decided by ``plan``.
        MemoryBudgetExceeded: the model does not fit the budget. The error says how much memory is needed and which
            settings would fit. Nothing large was loaded.
        RuntimeUnavailable: ONNX Runtime, the device or the native operators are missing, or this build cannot run the
            drafter.
        DownloadError, StorageError: with ``pull``, as there.
    """
    named = _preset_of(model)
    if named is not None:
        model = named.model
        if plan is None:
            memory, ctx = named.memory if memory is None else memory, named.ctx if ctx is None else ctx
    options = LoadOptions(
        memory=memory,
        device_memory=device_memory,
        experts=experts,
        ctx=ctx,
        threads=threads,
        device=device,
        on_device_error=on_device_error,
        prefill_chunk=prefill_chunk,
        kv=kv,
        isa=isa,
        spec=spec,
        draft_max=draft_max,
        corpus=None if corpus is None else Path(corpus),
        drafter=None if drafter is None else Path(drafter),
        prompt_cache=None if prompt_cache is None else Path(prompt_cache),
        prompt_cache_size=prompt_cache_size,
        slots=slots,
        kv_rows=kv_rows,
        max_queue=max_queue,
        formats=formats,
        spec_trace=spec_trace,
        on_calibrate=None if on_calibrate is None else lambda _: on_calibrate(),
        costs=user_costs(),
        tokenizer_readings=user_cache("tokenizers"),
        plan=plan,
        share_tokenizer_with=_encoder_of(share_tokenizer_with),
        config=None if named is None else GenerationConfig(**named.options),
        system=None if named is None else named.system,
    )
    return Model(_open(model, store, pulls=pull), options)


@known_options()
def plan(
    model: str | Path,
    *,
    memory: MemoryBudget = None,
    device_memory: int | str | None = None,
    experts: int | str | None = None,
    ctx: int | None = None,
    threads: int | None = None,
    device: str | None = "auto",
    store: str | Path | None = None,
    prefill_chunk: int | None = None,
    kv: str | None = None,
    spec: str | None = None,
    draft_max: int | None = None,
    corpus: str | Path | None = None,
    drafter: str | Path | None = None,
    prompt_cache: str | Path | None = None,
    slots: int | None = None,
    kv_rows: int | None = None,
    formats: bool = False,
) -> Plan:
    """Return what ``load`` with the same arguments would decide, whether it fits or not; nothing is loaded.

    Its ``unused`` names the given arguments that have no effect.

    Args:
        model: folder of a package, or the name of one in the store, or of a preset; all arguments are as in ``load``.
        memory: budget of resident memory.
        device_memory: budget of the memory of a GPU that has its own.
        experts: where experts are.
        ctx: capacity of the context in tokens.
        threads: threads that compute.
        device: what computes; its memory is planned for native packages on ``"cuda"`` and ``"vulkan"``.
        store: folder of the store.
        prefill_chunk: tokens of one prefill pass over a prompt.
        kv: format of the KV cache.
        spec: mode of speculation.
        draft_max: most drafted tokens of a pass.
        corpus: file that drafts are looked up in.
        drafter: folder of a trained drafter.
        prompt_cache: folder of stored prompts, which is only planned for.
        slots: answers that are computed at once.
        kv_rows: rows of the KV cache that they share.
        formats: whether answers in a format have room.

    Raises:
        ModelNotFound: there is no such package.
        InputError: the package cannot be used.
        ConfigError: an argument is out of range, does not apply to this package, or has no effect with ``spec``.
        InvalidCorpus: the file is not a corpus, or was built with another tokenizer.
        InvalidDrafter: the drafter is malformed, or for another model.
        RuntimeUnavailable: this build cannot run the drafter, or there is no such GPU.
        StorageError: the corpus or the drafter cannot be read.
    """
    if (named := _preset_of(model)) is not None:
        model, memory = named.model, named.memory if memory is None else memory
        ctx = named.ctx if ctx is None else ctx
    options = LoadOptions(
        memory=memory,
        device_memory=device_memory,
        experts=experts,
        ctx=ctx,
        threads=threads,
        device=device,
        prefill_chunk=prefill_chunk,
        kv=kv,
        spec=spec,
        draft_max=draft_max,
        corpus=None if corpus is None else Path(corpus),
        drafter=None if drafter is None else Path(drafter),
        prompt_cache=None if prompt_cache is None else Path(prompt_cache),
        slots=slots,
        kv_rows=kv_rows,
        formats=formats,
        costs=user_costs(),
    )
    made = plan_package(_open(model, store, remakes=False), options)
    require_rows_here(made, options)
    return made


def _preset_of(model: str | Path) -> Preset | None:
    """Return the preset of the configuration file that a text names; None if it names a model."""
    from edge_rt.store.config import load_config
    from edge_rt.store.naming import is_name

    return load_config().presets.get(model) if isinstance(model, str) and is_name(model) else None


def _encoder_of(model: Model | PromptEncoder | None) -> PromptEncoder | None:
    """Return the prompt encoder of the model whose tokenizer may be shared; None without such a model."""
    return model.texts if isinstance(model, Model) else model


def _open(model: str | Path, store: str | Path | None, *, pulls: bool = False, remakes: bool = True) -> Package:
    """Open the package that an argument means, which is pulled first if need be and ``pulls`` is set.

    One of another version in the store is made again, or with ``remakes`` False refused.
    """
    if not isinstance(model, str | Path):
        raise ConfigError("A model is named by a text or a path.", f"Got {model!r:.60}.", "Give its name, or its path.")
    path = absolute_path(Path(model))
    if is_package(path):
        return open_package(path)
    from edge_rt.store.layout import open_store
    from edge_rt.store.resolve import resolve

    place = open_store(store)
    resolved = resolve(model, place)
    if resolved.kind == "package" and resolved.path is not None:
        try:
            return resolved.open(place)
        except VersionMismatch:
            if not remakes or not resolved.can_be_made_again(place):
                raise
    from edge_rt.store.pull import ensure_package, find_made

    if resolved.kind == "package":
        return open_package(ensure_package(resolved.name, store=place, offline=not pulls, progress=usual_progress()))

    if (made := find_made(resolved, place)) is not None:
        return made
    if pulls:
        return open_package(ensure_package(model, store=place, progress=usual_progress()))
    if resolved.is_checkpoint:
        kind = "GGUF file" if resolved.kind == "gguf" else "folder with safetensors"
        raise ModelNotFound(
            f"{str(model)[:200]!r} is a {kind}, not a package.",
            "A package is made of it once.",
            "Give pull=True to edge_rt.load, or call edge_rt.pull(source) or edge_rt.export_model(source, out) first.",
        )
    raise ModelNotFound(
        f"{str(model)[:200]!r} is not a package on this machine.",
        f"To get it: {resolved.description}.",
        "Give pull=True to edge_rt.load, or call edge_rt.pull(name) first.",
    )


@known_options()
def pull(
    ref: str | Path,
    *,
    store: str | Path | None = None,
    name: str | None = None,
    offline: bool = False,
    activations: str | None = None,
    weights: str | None = None,
    size: int | str | None = None,
    kv: str | None = None,
    accept_loss: bool = False,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> PullReport:
    """Fetch a model and export it into the store; steps whose result is already in the store are skipped.

    Args:
        ref: name of a recipe, ``org/name`` or ``org/name:file.gguf`` of the Hugging Face hub, a local GGUF file, or a
            folder with ``config.json`` and safetensors.
        store: folder of the store; None takes the configured one.
        name: name in the store; None for the one that follows from ``ref``.
        offline: use what is on this machine only.
        activations: ``"auto"``, ``"int8"`` or ``"float"`` (portable op profile); None for the recipe's, or ``"auto"``.
        weights: types of the matrices, as in ``export_model``; a package with others is exported again. None: those of
            the package if there is one, else the default of ``export_model``.
        size: most bytes of ``weights.bin``, or a text such as ``"700MiB"``, as in ``export_model``; a package of
            another size is exported again. None: that of the package if there is one, else no limit.
        kv, accept_loss: as in ``export_model``.
        force: fetch and export again, and replace another model of that name.
        progress: called with the stages; None: they are shown in a notebook, and nowhere else.

    Raises:
        ModelNotFound, UnsupportedModel, InputError: the model does not exist or cannot be exported.
        DownloadError: no source delivered it.
        StorageError, MemoryBudgetExceeded: it does not fit the disk or the memory.
        ConfigError: an argument is out of range, or the name is taken.
    """
    from edge_rt.store.layout import open_store
    from edge_rt.store.pull import pull as pull_into

    return pull_into(
        ref,
        store=open_store(store),
        name=name,
        offline=offline,
        activations=activations,
        weights=weights,
        size=parse_limit(size),
        kv=kv,
        accept_loss=accept_loss,
        force=force,
        progress=progress or usual_progress(),
    )


@known_options()
def list_models(*, store: str | Path | None = None) -> list[StoreEntry]:
    """Return the models in the store in alphabetical order; one that cannot be used carries a ``problem``.

    Args:
        store: folder of the store; None takes the configured one.

    Raises:
        StorageError: the store cannot be read.
        ConfigError: the configuration file is wrong.
    """
    from edge_rt.store.layout import open_store

    return open_store(store).list()


@known_options()
def inspect_model(model: str | Path, *, store: str | Path | None = None, verify: bool = False) -> dict[str, Any]:
    """Return facts about a package, a checkpoint or a trained drafter, as ``edge-rt inspect --json`` shows them.

    Only manifests and headers are read.

    Args:
        model: path of a package, GGUF file, folder with safetensors or trained drafter; or a name in the store.
        store: folder of the store; None takes the configured one.
        verify: compare every file of a package or a drafter with its hash.

    Returns:
        A JSON object. Its ``kind`` is ``"package"``, ``"gguf"``, ``"safetensors"`` or ``"drafter"``.

    Raises:
        ModelNotFound: it is not on this machine.
        InputError: it is malformed, or a file differs from its hash.
        ConfigError: ``verify`` is set for a checkpoint, which has no hashes; or the configuration file is wrong.
        StorageError: it cannot be read.
    """
    from edge_rt.store.inspection import inspect
    from edge_rt.store.layout import open_store

    return inspect(model, open_store(store), verify=verify).facts


@known_options()
def remove_model(name: str, *, store: str | Path | None = None) -> RemovedReport:
    """Delete a model from the store: its package and its source files. Nobody is asked.

    Args:
        name: name in the store, or the ``org/name`` that it was fetched from.
        store: folder of the store; None takes the configured one.

    Raises:
        ModelNotFound: there is no such model in the store.
        StorageError: another process is working on it, or it cannot be deleted.
        ConfigError: it is no valid name, or the configuration file is wrong.
    """
    from edge_rt.store.layout import open_store

    return open_store(store).remove(name)
