"""What a load is asked for: one dataclass from the command line and ``edge_rt.load`` down to the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_rt.errors import ConfigError, RuntimeUnavailable
from edge_rt.memory.budget import Budget
from edge_rt.memory.plan import Plan
from edge_rt.package.reader import Package
from edge_rt.runtime.drafters.corpus import Corpus
from edge_rt.runtime.graph.io_binding import check_kv_format
from edge_rt.spec_modes import AUTO, CORPUS_MODES, require_draft_max, require_mode

if TYPE_CHECKING:
    from edge_rt.runtime.prompt.encoding import PromptEncoder
    from edge_rt.runtime.speculation.adaptive import Trace
    from edge_rt.runtime.speculation.cost_model import CostStore

Memory = int | str | Budget | None
"""A budget as it is given: bytes, a text such as ``"600MiB"``, one that several models share, or what there is."""

DEVICES = ("auto", "cpu")


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How a model is loaded; None leaves a choice to the plan.

    Attributes:
        memory: budget of resident memory for the process: bytes, a text such as ``"600MiB"``, or a ``Budget`` that
            several models share. None: what the machine has available. What is asked for below is kept or refused; what
            is not is given up where it does not fit: speculation, then the precision of the cache, then context.
        ctx: capacity of the context in tokens; None: the model's own, up to 8192, if that fits.
        threads: None takes every CPU this process may use; the number is one per process.
        device: ``"auto"`` or ``"cpu"``.
        prefill_chunk: tokens of one pass over a prompt.
        kv: format of the KV cache, one of those that ``edge-rt inspect`` shows; ``"auto"`` takes the fastest that fits,
            None the package's first, if it fits.
        isa: instruction set of the native operators, one of those that ``edge-rt doctor`` shows; None is the best.
        spec: speculation: ``"auto"`` (off in the portable op profile), ``"off"``, or one drafter: ``"ngram"``,
            ``"suffix"``, ``"recycling"``, ``"reference"``; None is ``"auto"``, if it fits.
        draft_max: most drafted tokens of a pass; None leaves it to plan and cost model.
        corpus: file of ``edge-rt corpus build`` for the suffix drafter; with ``spec`` None, ``"auto"`` or ``"suffix"``.
        spec_trace: called with every decoding step's decision.
        on_calibrate: called when the first answer has to wait for a measurement of what passes cost here, which takes a
            second or two.
        on_load: called with the name of what has just been loaded: ``"tokenizer"``, ``"cache"``, ``"session"``.
        costs: where the measured costs of passes are kept; None keeps them in memory only.
        plan: what was decided for the package before, to be done as it is. What it decides is not given again, but
            ``memory`` may be a ``Budget`` that the model's share is taken from.
        share_tokenizer_with: tokenizer and template of another model (``Model.texts``), shared if this package has the
            same tokenizer. A process that loads again and again then grows less.
        base_bytes: what this process held before its first model, where the new one takes the place of all that are
            loaded; None: what it holds now.
        spell: writes the flags of a setting that fits, for an error; None: as arguments of ``edge_rt.load``.

    Raises:
        ConfigError: a value is out of range, or the plan has decided it already.
        RuntimeUnavailable: the device cannot run any package.
    """

    memory: Memory = None
    ctx: int | None = None
    threads: int | None = None
    device: str = "auto"
    prefill_chunk: int | None = None
    kv: str | None = None
    isa: str | None = None
    spec: str | None = None
    draft_max: int | None = None
    corpus: Path | None = None
    spec_trace: Trace | None = None
    on_calibrate: Callable[[], None] | None = None
    on_load: Callable[[str], None] | None = None
    costs: CostStore | None = None
    plan: Plan | None = None
    share_tokenizer_with: PromptEncoder | None = None
    base_bytes: int | None = None
    spell: Callable[[tuple[str, ...]], str] | None = None

    def __post_init__(self) -> None:
        _check_device(self.device)
        if self.spec is not None:
            require_mode(self.spec)
        if self.draft_max is not None:
            require_draft_max(self.draft_max)
        if self.plan is not None:
            self._refuse_twice(self.plan)

    def _refuse_twice(self, plan: object) -> None:
        if not isinstance(plan, Plan):
            raise ConfigError("The plan is none.", f"Got {plan!r:.40}.", "Give what edge_rt.plan returned, or None.")
        decided = ("memory", "ctx", "threads", "prefill_chunk", "kv", "spec", "draft_max", "corpus")
        given = [name for name in decided if getattr(self, name) is not None]
        if isinstance(self.memory, Budget):
            given.remove("memory")
        if given:
            raise ConfigError(
                "The plan has decided that already.",
                f"Given beside it: {', '.join(given)}.",
                "Give it to edge_rt.plan.",
            )

    def but(self, **changes: Any) -> LoadOptions:
        """Return the options with some replaced."""
        return dataclasses.replace(self, **changes)

    def as_planned(self, plan: Plan) -> LoadOptions:
        """Return the options with which a model is loaded as a plan for them has decided."""
        budget = self.memory if isinstance(self.memory, Budget) else None
        nothing = dict.fromkeys(("ctx", "threads", "prefill_chunk", "kv", "spec", "draft_max", "corpus", "base_bytes"))
        return self.but(memory=budget, plan=plan, **nothing)

    def check(self, package: Package) -> None:
        """Refuse what is not for this package, or without effect together; numbers are ``make_plan``'s to judge.

        Raises:
            ConfigError: the package has no such cache format (with those there are, and whether exporting again gives
                it), or the mode of speculation does not use a corpus.
            InvalidCorpus: the corpus is none, or comes from another tokenizer.
            StorageError: it cannot be read.
        """
        if self.kv not in (None, AUTO):
            check_kv_format(package.manifest, str(self.kv))
        if self.corpus is None:
            return
        mode = self.spec or AUTO
        if mode not in CORPUS_MODES:
            raise ConfigError(
                f"A corpus is not used with the mode of speculation {mode!r}.",
                f"It is used with {', '.join(CORPUS_MODES)}.",
                "Leave one out.",
            )
        tokenizer = package.manifest.files[package.manifest.tokenizer.file].sha256
        # Its sections are compared with their hashes when it is loaded.
        Corpus.open(Path(self.corpus), tokenizer=tokenizer, verify=False).close()


def _check_device(device: str) -> None:
    if device == "cuda":
        raise RuntimeUnavailable(
            "This package cannot run on CUDA.", "Its graph computes in float32 on the CPU.", "Use --device cpu."
        )
    if device not in DEVICES:
        raise ConfigError("The device is unknown.", f"Got {device!r:.40}.", "Choose auto or cpu.")
