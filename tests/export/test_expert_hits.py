"""What a cache would have held of a text, against a cache that is played through."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from edge_rt.export.reference.expert_hits import Routing, hits_of
from edge_rt.package.expert_hits import EVEN, ExpertHits


def routes(rows, experts, chosen, seed, zipf=0.0):
    rng = np.random.default_rng(seed)
    has = np.zeros((rows, experts), bool)
    bias = -zipf * np.log(1.0 + np.arange(experts))
    for row in has:
        row[np.argsort(rng.gumbel(size=experts) + bias)[-chosen:]] = True
    return has


def played(has, size):
    """Return the share of hits of a cache of some experts, use by use."""
    cache, hits, uses = OrderedDict(), 0, 0
    for row in has:
        for expert in np.flatnonzero(row):
            uses += 1
            if expert in cache:
                hits += 1
                cache.move_to_end(expert)
            else:
                cache[expert] = True
                if len(cache) > size:
                    cache.popitem(last=False)
    return hits / uses


@pytest.mark.parametrize("zipf", [0.0, 1.2])
def test_hits_are_those_of_a_cache_that_is_played_through(zipf):
    layers = {layer: routes(200, 32, 4, layer, zipf) for layer in range(2)}
    routing = Routing()
    for layer, has in layers.items():
        for begin in range(0, 200, 64):
            routing.add(layer, has[begin : begin + 64])
    found = routing.hits()
    assert not list(found.faults())
    for share, hits in zip(found.shares, found.hits, strict=True):
        expected = np.mean([played(has, int(share * 32)) for has in layers.values()])
        assert hits == pytest.approx(expected, abs=1e-4)
    even = found.at(0.5)
    assert (even > 0.7) if zipf else (0.4 < even < 0.55)


def test_neighbours_that_agree_have_fewer_experts_together():
    own = routes(400, 64, 4, 1)
    assert hits_of({0: own}).union_share == pytest.approx(1, abs=0.05)
    assert hits_of({0: np.repeat(own[:50], 8, axis=0)}).union_share == 0
    assert hits_of({}) is None


def test_what_is_no_curve_is_told():
    assert EVEN.at(0.3) == pytest.approx(0.3)
    assert ExpertHits(5, (0.5,), (0.9,)).at(0.75) == pytest.approx(0.95)
    for wrong in (
        ExpertHits(0, (), ()),
        ExpertHits(5, (0.5, 0.5), (0.1, 0.2)),
        ExpertHits(5, (0.5,), (1.5,)),
        ExpertHits(5, (0.5,), ()),
        ExpertHits(5, (0.2, 0.4), (0.5, 0.4)),
        ExpertHits(5, (float("nan"),), (0.5,)),
        ExpertHits(5, (0.5,), (0.5,), float("nan")),
    ):
        assert list(wrong.faults()), wrong
