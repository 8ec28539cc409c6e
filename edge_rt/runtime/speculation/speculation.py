"""Chooses the drafter for a mode such as ``spec="auto"``, and keeps what the drafters of a model have learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from edge_rt.errors import ConfigError, MemoryBudgetExceeded, RuntimeUnavailable
from edge_rt.package.exits import require_exit_mode
from edge_rt.package.spec_modes import (
    AUTO,
    COMPUTED_MODES,
    CORPUS_MODES,
    EXIT,
    OFF,
    RATIO_MODE,
    REFERENCE_MODES,
    Drafts,
    mode_of,
    require_mode,
    require_rule,
)
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.accept import accept
from edge_rt.runtime.decode.draft import Drafter, NullDrafter
from edge_rt.runtime.decode.loop import AcceptanceRule
from edge_rt.runtime.speculation.adaptive import AdaptiveDrafter, Trace
from edge_rt.runtime.speculation.arms import DiscountedUCB
from edge_rt.runtime.speculation.core import DraftCore
from edge_rt.runtime.speculation.cost_model import Costs
from edge_rt.runtime.speculation.library import DraftLibrary
from edge_rt.runtime.speculation.live_costs import LiveCosts
from edge_rt.runtime.speculation.slot_sources import CORPUS, SlotSources, TableBounds
from edge_rt.runtime.speculation.source import AnySource, ForestSource
from edge_rt.runtime.speculation.text_sources import NativeSource

if TYPE_CHECKING:
    from edge_rt.runtime.speculation.corpus import Corpus
    from edge_rt.runtime.speculation.sampled import SampledDrafter, SlotRates

AUTO_SOURCES: Final = ("suffix", "recycling")
# Expected reward of an arm before it was tried, relative to the average.
_PRIOR_OFF, _PRIOR_DRAFTING = 0.8, 1.0


@dataclass
class _Slot:
    """What drafts for the answers of a slot.

    Attributes:
        drafters: by the names of their sources.
        referring: the last one that copies from a text, behind mode and text: a chat gives the same at every turn.
    """

    sources: SlotSources
    drafters: dict[tuple[str, ...], AdaptiveDrafter] = field(default_factory=dict)
    referring: tuple[tuple[str, tuple[int, ...]], AdaptiveDrafter] | None = None

    def drop_drafters(self) -> None:
        """Make them anew when they are asked for."""
        self.drafters.clear()
        self.referring = None


class Speculation:
    """The drafters of one model; what they learned is kept from one generation to the next.

    Args:
        mode: one of ``SPEC_MODES``: the mode of generations that ask for no other.
        draft_max: most drafted tokens of a pass; the cost model usually chooses fewer.
        drafts: what may be drafted. Unless it is exact, ``auto`` is off, and a chain that is asked for may give another
            text than plain decoding.
        corpus: further texts, of which ``auto`` and ``suffix`` draft as well.
        sources: of networks that draft: mode -> function of the costs that makes its source, which ``auto`` asks too.
    """

    def __init__(
        self,
        mode: str,
        draft_max: int,
        *,
        drafts: Drafts,
        costs: Callable[[], Costs],
        corpus: Corpus | None,
        bounds: TableBounds | None = None,
        trace: Trace | None = None,
        sources: Mapping[str, Callable[[Costs], AnySource]] | None = None,
        library: DraftLibrary | None,
    ) -> None:
        self.drafts = drafts
        self.draft_max = draft_max
        self.asked = mode
        self.trace = trace
        self._bounds = bounds or TableBounds()
        self._measure = costs
        self._costs: Costs | None = None
        self._corpus = corpus
        self._library = library
        self._require_library(mode)
        self._slots: list[_Slot] = []
        self._network_sources: dict[str, AnySource] = {}
        self._slot_rates: SlotRates | None = None
        self._networks = dict(sources or {})

    @property
    def mode(self) -> str:
        """The mode of generations that ask for no other."""
        return self._in_force(self.asked)

    @property
    def has_library(self) -> bool:
        """Whether there is a library that drafts."""
        return self._library is not None

    def _in_force(self, mode: str) -> str:
        is_possible = self.drafts.are_exact and self.has_library
        if self.drafts is Drafts.NOTHING or (mode == AUTO and not is_possible):
            return OFF
        return mode

    def resolve(self, mode: str | None, *, has_reference: bool = False, accept: str = "match") -> str:
        """Return the mode of a generation: the one that it asks for, or the model's.

        Args:
            mode: of the request; None takes the model's.
            has_reference: whether the request has a text that may be copied.
        """
        mode = self.asked if mode is None else mode
        require_mode(mode)
        if mode == "reference" and not has_reference:
            raise ConfigError(
                "The reference drafter has nothing to copy from.",
                "No reference text was given.",
                "Give one (reference=..., --reference FILE), or choose another drafter.",
            )
        require_rule(accept, mode)
        require_exit_mode(mode, has_exits=EXIT in self._networks)
        if has_reference and mode not in (OFF, *REFERENCE_MODES):
            raise ConfigError(
                "A reference text is given to a drafter that does not copy from one.",
                f"The drafter is {mode!r}.",
                "Choose auto or reference, or leave the text out.",
            )
        mode = self._in_force(mode)
        self._require_library(mode)
        self._require_provider(mode)
        self._require_room(mode)
        return mode

    def _require_library(self, mode: str) -> None:
        if mode not in (OFF, AUTO) and self._library is None:
            raise RuntimeUnavailable(
                f"The mode of speculation {mode!r} needs the native library.",
                "This build of edge-rt has none, or one without a drafting core of this version.",
                "Turn speculation off, or install edge-rt with a C++ compiler.",
            )

    def _require_provider(self, mode: str) -> None:
        loaded_modes = tuple(self._networks)
        if mode_of(mode) in COMPUTED_MODES and mode not in loaded_modes:
            loaded = ", ".join(dict.fromkeys(loaded_modes))
            raise ConfigError(
                f"The model was loaded without the drafter {mode!r}.",
                f"It was loaded with {loaded}." if loaded else "It was loaded without a drafter that computes.",
                f"Load it with that drafter (spec={mode!r}, --spec {mode}) if it has one, or choose another mode.",
            )

    def _require_room(self, mode: str) -> None:
        bounds = self._bounds
        room = {
            "auto": bounds.suffix_tokens + bounds.recycling_contexts + len(self._networks),
            "recycling": bounds.recycling_contexts,
            "off": 1,
            **dict.fromkeys(self._networks, 1),
        }.get(mode, bounds.suffix_tokens)
        if not room:
            raise MemoryBudgetExceeded(
                f"The memory plan has no room for the drafter {mode!r}.",
                f"It was made for {self.asked!r}: {bounds.suffix_tokens} tokens of text and "
                f"{bounds.recycling_contexts} contexts may be remembered.",
                f"Load the model with it (spec={mode!r}, --spec {mode}), or with a larger budget.",
            )

    def drafter(
        self, mode: str, reference_ids: Items[int] | None = None, *, slot: int = 0, computes: bool = True
    ) -> Drafter:
        """Return the drafter for a generation.

        Args:
            slot: of the answer; those of other slots may be under way.
            computes: whether networks draft as well; they serve one answer at a time.
        """
        names = () if mode == "off" else self._source_names(mode)
        names = tuple(name for name in names if computes or name not in self._networks)
        is_referring = reference_ids is not None and mode in REFERENCE_MODES
        if not names and not is_referring:
            return NullDrafter()
        own = self._slot(slot)
        if self._bounds.is_planned:
            tokens = len(reference_ids or ()) if is_referring else 0
            if own.sources.share(names, tokens):
                own.drop_drafters()
            if not tokens and {"ngram", "suffix"}.intersection(names):
                own.referring = None
        if reference_ids is not None and is_referring:
            key = (mode, tuple(reference_ids))
            if own.referring is None or own.referring[0] != key:
                sources = (*(self._source(name, own) for name in names), own.sources.reference(reference_ids))
                own.referring = (key, self._assemble(sources))
            return own.referring[1]
        if names not in own.drafters:
            own.drafters[names] = self._assemble(tuple(self._source(name, own) for name in names))
        return own.drafters[names]

    def _slot(self, index: int) -> _Slot:
        while len(self._slots) <= index:
            beside = self._slots[0].sources if self._slots else None
            sources = SlotSources(
                self._library, self._bounds, self._corpus, only_ngrams=self.asked == "ngram", beside=beside
            )
            self._slots.append(_Slot(sources))
        return self._slots[index]

    def _source(self, name: str, slot: _Slot) -> AnySource:
        if name not in self._networks:
            return slot.sources.get(name)
        if name not in self._network_sources:
            self._network_sources[name] = self._networks[name](self.costs)
        return self._network_sources[name]

    def drafting(
        self,
        config: GenerationConfig,
        mode: str,
        reference_ids: Items[int] | None,
        temperature: float,
        *,
        slot: int = 0,
        computes: bool = True,
    ) -> tuple[Drafter, AcceptanceRule]:
        """Return who drafts for a generation, and which of the drafted tokens stay.

        Args:
            temperature: in force; 0 is greedy.
            slot, computes: as of ``drafter``.
        """
        # Greedy decoding has no distribution to keep: both rules keep its text then.
        if config.accept == "ratio" and temperature > 0.0:
            sampled = self.sampled_drafter(temperature, config.seed)
            return sampled, sampled.accept
        return self.drafter(mode, reference_ids, slot=slot, computes=computes), accept

    def sampled_drafter(self, temperature: float, seed: int | None) -> SampledDrafter:
        """Return the drafter for a generation that accepts by ratio; its ``accept`` is the rule.

        Args:
            temperature: of the request, above 0.
        """
        from edge_rt.runtime.speculation.sampled import SampledDrafter, SlotRates

        if self._slot_rates is None:
            self._slot_rates = SlotRates()
        source = self._source(RATIO_MODE, self._slot(0))
        assert not isinstance(source, ForestSource), source.name
        assert self._library is not None, "modes that draft are refused without it"
        return SampledDrafter(
            source,
            self._slot_rates,
            self.costs,
            library=self._library,
            temperature=temperature,
            seed=seed,
            max_nodes=self.draft_max,
            chain=self.drafts is not Drafts.TREES,
            trace=self.trace,
        )

    def _source_names(self, mode: str) -> tuple[str, ...]:
        if mode == AUTO:
            return self._auto_sources()
        texts = () if mode == "reference" else (mode,)
        return (*texts, *self._corpus_names) if mode in CORPUS_MODES else texts

    @property
    def _corpus_names(self) -> tuple[str, ...]:
        return () if self._corpus is None else (CORPUS,)

    def _auto_sources(self) -> tuple[str, ...]:
        room = {"suffix": self._bounds.suffix_tokens, "recycling": self._bounds.recycling_contexts}
        texts = (name for name in AUTO_SOURCES if room[name])
        return (*texts, *self._corpus_names, *self._networks)

    def most_reference_tokens(self, mode: str) -> int | None:
        """Return how many tokens of a reference text the memory plan has room for; None: no limit.

        Args:
            mode: as ``resolve`` returns it; must be one that copies from a reference text.
        """
        if not self._bounds.is_planned:
            return None
        return self._slot(0).sources.reference_room(self._auto_sources() if mode == "auto" else ())

    @property
    def costs(self) -> Costs:
        """Costs of passes; opened when first asked for."""
        if self._costs is None:
            self._costs = self._measure()
        return self._costs

    @costs.setter
    def costs(self, costs: Costs) -> None:
        self._costs = costs
        # Sources that decide by costs are made anew.
        self._network_sources.clear()
        self._drop_drafters()

    def prepare(self) -> None:
        """Open the costs of passes if they may have to be measured, while no answer has rows: they would be emptied."""
        if self._costs is None and self._networks and self.has_library:
            self._costs = self._measure()

    @property
    def known_costs(self) -> Costs | None:
        """Costs of passes if they are known already; nothing is measured."""
        return self._costs

    @property
    def corpus(self) -> Corpus | None:
        """Further texts for the suffix drafter, if there are any."""
        return self._corpus

    @property
    def memory_bytes(self) -> int:
        """Memory of the drafters in bytes."""
        networks = sum(source.memory_bytes for source in self._network_sources.values())
        return networks + sum(slot.sources.memory_bytes for slot in self._slots)

    def replace(self, name: str, source: AnySource) -> None:
        """Replace a source by another one: for measurements and tests."""
        if name in self._networks:
            self._networks[name] = lambda _: source
            self._network_sources[name] = source
        else:
            self._slot(0).sources.replace(name, source)
        self._drop_drafters()

    def forget(self) -> None:
        """Discard what the drafters have learned."""
        self._slots.clear()
        self._network_sources.clear()
        self._slot_rates = None

    def save_costs(self) -> None:
        """Store what answers taught of the costs of passes."""
        if isinstance(self._costs, LiveCosts):
            self._costs.save()

    def close(self) -> None:
        """Release everything, the corpus included; what was learned of costs is stored."""
        self.save_costs()
        self.forget()
        self._corpus = None
        self._networks.clear()

    def _drop_drafters(self) -> None:
        for slot in self._slots:
            slot.drop_drafters()

    @property
    def library(self) -> DraftLibrary | None:
        """The library that drafts; None: there is none, and nothing is drafted."""
        return self._library

    def _assemble(self, sources: tuple[AnySource, ...]) -> AdaptiveDrafter:
        assert self._library is not None, "modes that draft are refused without it"
        core = DraftCore(self._library, sources, chain=self.drafts is not Drafts.TREES)
        # The library looks texts up in microseconds: the costs of rows alone decide whether a draft pays.
        looks_up = any(isinstance(source, NativeSource) for source in sources)
        is_quick = looks_up and all(isinstance(source, (NativeSource, ForestSource)) for source in sources)
        priors = (_PRIOR_OFF, *[_PRIOR_DRAFTING] * (len(core.arms) - 1))
        return AdaptiveDrafter(
            core,
            self.costs,
            None if is_quick else DiscountedUCB(priors),
            max_nodes=self.draft_max,
            corrects=all(source.name != EXIT for source in sources),
            trace=self.trace,
        )
