"""Passes of a graph over a cache, without the rest of a runtime."""

from __future__ import annotations

import numpy as np

from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session, pool_size
from edge_rt.runtime.forward.runner import ModelRunner
from edge_rt.system.machine import usable_cpus


class Passes:
    """Runs passes over a cache of its own.

    Args:
        interface: the IO binding.
        graph: path of the graph.
        profile: its op profile.
    """

    def __init__(self, interface, graph, profile="native"):
        threads = pool_size() or usable_cpus()
        session = Session(graph, threads=threads, profile=profile, more_outputs=interface.more_outputs)
        self.interface, self.cache = interface, interface.open_cache()
        self.runner = ModelRunner(session, interface, StopSwitch())

    def append(self, token_ids):
        """Return the logits of tokens behind those of the cache."""
        with self.cache.reserve(len(token_ids)) as rows:
            logits = self.runner.forward(token_ids, rows.start, len(token_ids)).logits.copy()
            rows.commit(token_ids)
        self.cache.check()
        return logits

    def append_in(self, size, token_ids):
        """The same, in passes of some tokens."""
        parts = [self.append(token_ids[start : start + size]) for start in range(0, len(token_ids), size)]
        return np.concatenate(parts)

    def tree(self, token_ids, parents, path):
        """Return the logits of a tree's tokens, and keep those of a path."""
        with self.cache.reserve(len(token_ids), parents) as rows:
            logits = self.runner.forward(token_ids, rows.start, len(token_ids), parents=parents).logits.copy()
            rows.commit([token_ids[node] for node in path], path)
        self.cache.check()
        return logits


def same_bits(found, expected):
    """Assert that two arrays of float32 have the same bits."""
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
