"""What a loaded model consists of: its parts, the device they are on, and who holds them."""

from __future__ import annotations

import gc
import time
import weakref
from abc import ABC
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from edge_rt.device.names import CPU, ON_CPU, DeviceChoice
from edge_rt.errors import DEVICE_FAILURES, Cancelled, ConfigError, EdgeRTError, out_of_memory
from edge_rt.memory.plan import Plan
from edge_rt.ort.expert_cache import ExpertReads
from edge_rt.ort.session import follow_cpus, onnxruntime_version, pool_size
from edge_rt.package.reader import Package
from edge_rt.runtime.admission import Admission, Drafting
from edge_rt.runtime.aio import Pump
from edge_rt.runtime.batch import Batch
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.forward.runner import ExclusiveRunner, Runner, closed
from edge_rt.runtime.generation import Held
from edge_rt.runtime.load.loading import Loaded, kept_gpu_bytes, load
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.model_rows import ModelRows
from edge_rt.runtime.prompts import PromptEncoder
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.runtime.speculation.division import Division
from edge_rt.runtime.speculation.live_costs import LiveCosts
from edge_rt.runtime.speculation.speculation import Speculation
from edge_rt.system.machine import return_free_memory
from edge_rt.system.process_memory import peak_rss_bytes

if TYPE_CHECKING:
    from edge_rt.runtime.embedding import Embedder

_LESS: Final = "Load the model with a smaller context."


class LoadedModel(ModelRows, ABC):
    """The parts of a model, from loading to closing; a GPU that fails is replaced by the CPU, where that is wanted."""

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
            most, division = _shared_passes(parts, self.prefill_chunk)
            admission = Admission(parts.slots, parts.pool, most_waiting=options.max_queue)
            own = weakref.ref(self)
            hold, forget, instead = partial(_held, own), partial(_forget, own), partial(_replaced, own)
            self._batch = Batch(
                admission,
                hold,
                division,
                most_rows=most,
                forget=forget,
                instead=None if self._options is None else instead,
            )
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
        note = self.device_choice.note
        if self._batch is not None:
            most, division = _shared_passes(parts, self.prefill_chunk)
            self._batch.take_over(parts.slots, parts.pool, division, most, note or "")
        if options.on_takeover is not None:
            options.on_takeover(self.device_choice)
        return note

    def expert_reads(self) -> ExpertReads | None:
        """Return what was read of experts since the model was loaded; None where they are resident, or none are."""
        return None if self._experts is None else self._expert_counts()[0]

    def _expert_counts(self) -> tuple[ExpertReads, int]:
        cache = None if self._experts is None else self._experts()
        return (ExpertReads() if cache is None else cache.counts()), self.plan.choice.expert_bytes or 0

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
    def kv_held(self) -> tuple[int, int]:
        """Rows of the KV cache that hold tokens, and their bytes."""
        return self._cache.length, self._cache.used_bytes

    @property
    def prefill_chunk(self) -> int:
        """Tokens of one pass over a prompt."""
        return self.plan.choice.prefill_chunk

    @property
    def logit_rows(self) -> int | None:
        """Most rows whose logits a pass may want; None: as many as the system has memory for."""
        return self._load_plan.most_logit_rows

    @property
    def over_budget(self) -> str | None:
        """What is to be said of a GPU's driver by which the process has taken more than its budget; None: nothing."""
        return self._load_plan.over_budget(peak_rss_bytes)

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

    def __reduce__(self) -> NoReturn:
        raise ConfigError(
            "A model cannot be pickled or copied.",
            "It holds memory, threads and sessions of this process.",
            "Load its package once more with edge_rt.load, also in another process.",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _forget(model: weakref.ref[LoadedModel]) -> None:
    """Discard what the drafters of a model have learned."""
    if (held := model()) is not None:
        held._speculation.forget()


def _replaced(model: weakref.ref[LoadedModel], failed: EdgeRTError) -> bool:
    """Let the CPU take the place of a batch's GPU that has failed; return whether it did."""
    held = model()
    return held is not None and held._instead_of(failed) is not None


def _shared_passes(parts: Loaded, chunk: int) -> tuple[int, Division]:
    """Return how many rows the passes of several answers have at most, and what divides them among drafts."""
    most, speculation = max(min(chunk, parts.cache.largest_pass), 2 * len(parts.slots)), parts.speculation
    division = Division(
        speculation.library,
        lambda: speculation.costs,
        most_rows=min(most, 2 * len(parts.slots) + speculation.draft_max),
        draft_max=speculation.draft_max,
    )
    return most, division


def _held(model: weakref.ref[LoadedModel], cancel: CancelToken) -> AbstractContextManager[Runner]:
    """Return what holds a model for a batch, which does not keep it alive."""
    held = model()
    if held is None:
        raise closed()
    return held._held_by_batch(cancel)
