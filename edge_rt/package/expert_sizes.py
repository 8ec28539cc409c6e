"""What the experts of a package take, how many of them a cache of some bytes holds, and how often one is there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from edge_rt.package.ahead import with_block
from edge_rt.package.decoder import Decoder
from edge_rt.package.expert_hits import EVEN, ExpertHits
from edge_rt.package.reader import Package

AUTO_EXPERTS: Final = "auto"
RESIDENT: Final = "resident"
"""All experts are in memory, however much that is."""
PAGE_BYTES: Final = 4096
"""What is read begins and ends at multiples of it."""
_MATRIX: Final = re.compile(r"layer([0-9]+)\.(?:gate_up|down)\.tiles")


@dataclass(frozen=True)
class ExpertPool:
    """Layers whose experts are of one size.

    Attributes:
        slot_bytes: of an expert in a cache: its matrices, each with room for where it begins in a page.
        stored_bytes: of an expert in ``weights.bin``.
        count: experts of a layer, and ``chosen`` of them for a row.
    """

    slot_bytes: int
    stored_bytes: int
    layers: int
    count: int
    chosen: int

    @property
    def demand(self) -> int:
        """Experts that a row has in all layers."""
        return self.layers * self.chosen

    @property
    def total(self) -> int:
        """Experts of all layers."""
        return self.layers * self.count


@dataclass(frozen=True)
class ExpertSizes:
    """The experts of a model.

    Attributes:
        curve: how often they are there; as in the package's calibration text, or as if all were as likely.
    """

    pools: tuple[ExpertPool, ...]
    curve: ExpertHits = EVEN

    @property
    def stored_bytes(self) -> int:
        """Bytes of all experts in ``weights.bin``."""
        return sum(pool.total * pool.stored_bytes for pool in self.pools)

    @property
    def row_bytes(self) -> int:
        """Bytes of the experts that a row has."""
        return sum(pool.demand * pool.stored_bytes for pool in self.pools)

    @property
    def least_bytes(self) -> int:
        """Bytes of the smallest cache: the experts that a row has in all layers."""
        return sum(pool.demand * pool.slot_bytes for pool in self.pools)

    @property
    def most_bytes(self) -> int:
        """Bytes of a cache that holds all experts."""
        return sum(pool.total * pool.slot_bytes for pool in self.pools)

    def slots(self, cache_bytes: int) -> tuple[int, ...]:
        """Return the slots of every pool of a cache: what a row has, and of the rest its share."""
        rest, span = max(0, cache_bytes - self.least_bytes), max(1, self.most_bytes - self.least_bytes)
        share = min(1.0, rest / span)
        return tuple(pool.demand + int(share * (pool.total - pool.demand)) for pool in self.pools)

    def cache_bytes(self, most_bytes: int) -> int:
        """Return the bytes that a cache of at most so many takes."""
        return sum(count * pool.slot_bytes for count, pool in zip(self.slots(most_bytes), self.pools, strict=True))

    def missed_bytes(self, cache_bytes: int) -> float:
        """Return the bytes that a row reads from the file, on average."""
        return sum(
            (1 - self.curve.at(count / pool.total)) * pool.demand * pool.stored_bytes
            for count, pool in zip(self.slots(cache_bytes), self.pools, strict=True)
        )

    def hit_share(self, cache_bytes: int) -> float:
        """Return how much of what a row has is in the cache, on average."""
        return 1 - self.missed_bytes(cache_bytes) / self.row_bytes

    def union_factor(self, rows: int) -> float:
        """Return how many experts several neighbouring rows have together, relative to one.

        That is ``E (1 - (1 - k / E)^rows) / k`` of k of E experts that are as likely; of others less, by what the
        calibration text has shown.
        """
        whole = sum(
            pool.total * (1 - (1 - pool.chosen / pool.count) ** rows) * pool.stored_bytes for pool in self.pools
        )
        return 1 + self.curve.union_share * (whole / self.row_bytes - 1)


def expert_sizes(package: Package) -> ExpertSizes | None:
    """Return the sizes of a native package's experts; None if it has none."""
    model = package.manifest.model
    if package.manifest.op_profile != "native" or not isinstance(model, Decoder) or not model.expert_layers:
        return None
    lengths = {name: place.length for graph in package.tensors.values() for name, place in graph.items()}
    return ExpertSizes(_pools(_whole(package, model), lengths), package.manifest.expert_hits or EVEN)


def _whole(package: Package, model: Decoder) -> Decoder:
    """Return the model with its block that predicts further ahead, if there is one: its experts are read alike."""
    ahead = package.manifest.ahead
    return model if ahead is None else with_block(model, ahead.layer)


def _pools(model: Decoder, lengths: Mapping[str, int]) -> tuple[ExpertPool, ...]:
    """Return the pools of a model, given the bytes of its tensors."""
    matrices: dict[int, list[int]] = {}
    for name, length in lengths.items():
        if (found := _MATRIX.fullmatch(name)) is not None:
            matrices.setdefault(int(found[1]), []).append(length)
    kinds: Counter[tuple[int, int, int, int]] = Counter()
    for number in model.expert_layers:
        experts = model.layers[number].experts
        assert experts is not None, number
        each = [length // experts.count for length in matrices.get(number, ())]
        kinds[slot_bytes(each), sum(each), experts.count, experts.chosen] += 1
    return tuple(
        ExpertPool(slot, stored, layers, count, chosen) for (slot, stored, count, chosen), layers in kinds.items()
    )


def expert_matrices(package: Package) -> set[str]:
    """Return the names of the tensors that hold experts."""
    model = package.manifest.model
    assert isinstance(model, Decoder), package.manifest.op_profile
    layers = set(_whole(package, model).expert_layers)
    return {
        name
        for graph in package.tensors.values()
        for name in graph
        if (found := _MATRIX.fullmatch(name)) is not None and int(found[1]) in layers
    }


def slot_bytes(matrices: Sequence[int]) -> int:
    """Return the bytes of a slot for matrices of some bytes, wherever they begin (``csrc/ops/experts``)."""
    return sum(-(-count // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES for count in matrices)
