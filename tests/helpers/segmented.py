"""The same small model as one graph and cut at exits."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_rt.export import export_model
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import PassMemory, Session, arena_of, pool_size
from edge_rt.package.reader import open_package
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.loop import Decoding, decode
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.forward.segmented_runner import SegmentedRunner
from edge_rt.runtime.speculation.adaptive import AdaptiveDrafter
from edge_rt.runtime.speculation.core import DraftCore
from edge_rt.runtime.speculation.exit_source import ExitPlan, ExitRates, ExitSource
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.system.machine import usable_cpus
from tests.helpers.fake_sources import linear_costs
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.passes import Passes

EXITS = (1, 3, 4)
ALL_EXITS = range(len(EXITS))
LAYERS = 6
WINDOW = 24
CONTEXT = 320
LARGEST_PASS = 100
PROMPT = [(3 + 17 * i) % 419 for i in range(12)]


@dataclass(frozen=True)
class Pair:
    """Two packages of one checkpoint.

    Attributes:
        whole: with one segment.
        cut: with exits behind ``EXITS`` layers.
    """

    whole: Path
    cut: Path


def make_pair(folder: Path, **options) -> None:
    """Write a checkpoint of ``LAYERS`` layers and both packages of it into a folder; options of the checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    options = {"layers": LAYERS, "context": 512, "seed": 5, **options}
    write_llama_gguf(folder / "six.gguf", **options)
    export_model(folder / "six.gguf", folder / "whole", profile="native")
    export_model(folder / "six.gguf", folder / "cut", profile="native", exits=EXITS)


def pair_in(folder: Path) -> Pair:
    """Return what ``make_pair`` wrote."""
    return Pair(folder / "whole", folder / "cut")


def make_window_pair(folder: Path) -> None:
    """The same with a sliding window of 24 tokens."""
    make_pair(folder, extra_metadata={"llama.attention.sliding_window": WINDOW})


class CutPasses(Passes):
    """Passes of a package with exits, over a cache of its own; see ``Passes``.

    Args:
        package: its folder.
        kv_format: of the cache.
        capacity: rows of the cache.
        largest_pass: rows of the largest pass.
        switch: stops passes.
        hidden: whether passes return hidden states.
    """

    def __init__(
        self, package, kv_format="f16", *, capacity=CONTEXT, largest_pass=LARGEST_PASS, switch=None, hidden=False
    ):
        opened = open_package(package)
        manifest = opened.manifest
        self.interface = open_io_binding(manifest, capacity, kv_format, largest_pass=largest_pass, hidden=hidden)
        self.cache = self.interface.open_cache()
        threads = pool_size() or usable_cpus()
        with arena_of(PassMemory(1 << 20, is_limit=False)) as arena:
            sessions = [
                Session(
                    opened.file(graph),
                    threads=threads,
                    profile="native",
                    memory=arena,
                    more_outputs=self.interface.more_outputs if graph == manifest.segments[-1].graph else (),
                )
                for graph in manifest.graphs
            ]
        self.runner = SegmentedRunner(
            sessions, manifest.segments, self.interface, switch or StopSwitch(), self.cache.ahead, largest_pass
        )

    def draft(self, token_ids, segments, parents=None):
        """Compute nodes of a draft in the first segments; return the most likely token behind each."""
        self.cache.ahead.begin(self.cache.length, segments)
        self.cache.make_room(len(token_ids))
        parents = range(-1, len(token_ids) - 1) if parents is None else parents
        pairs = zip(token_ids, parents, strict=True)
        likely = [int(self.runner.draft(token, parent).ids[0, 0]) for token, parent in pairs]
        self.cache.check()
        return likely


def whole_passes(package, kv_format="f16", *, capacity=CONTEXT, largest_pass=LARGEST_PASS, hidden=False):
    """Return passes of a package with one graph."""
    manifest = open_package(package).manifest
    interface = open_io_binding(manifest, capacity, kv_format, largest_pass=largest_pass, hidden=hidden)
    return Passes(interface, package / "model.onnx")


def make_agreeing_pair(folder: Path, **options) -> None:
    """A pair whose later layers change little, so that its exits often say what the whole model does."""
    rng = np.random.default_rng(9)
    weak = {}
    for layer in range(1, LAYERS):
        weak[f"blk.{layer}.attn_output.weight"] = 0.03 * rng.standard_normal((64, 64)).astype(np.float32)
        weak[f"blk.{layer}.ffn_down.weight"] = 0.03 * rng.standard_normal((64, 128)).astype(np.float32)
    make_pair(folder, weights=weak, tied=False, **options)


def answer(passes, drafter, prompt, count, **options):
    """Generate an answer and return its tokens; between steps every segment has the same rows.

    Args:
        passes: ``CutPasses`` or ``Passes``.
        drafter: drafts.
        prompt: token ids.
        count: tokens of the answer.
        **options: of ``GenerationConfig``.
    """
    config = GenerationConfig(max_tokens=count, repetition_guard=False, **options)
    sequence = Sequence(prompt, capacity=passes.cache.capacity, max_tokens=count, end_ids=())
    sampler = Sampler(config, passes.interface.model.vocab_size, prompt, config.sampling(None))
    passes.cache.truncate(0)
    for _ in decode(Decoding(sequence, drafter, passes.cache, sampler), passes.runner):
        passes.cache.check()
        assert set(passes.cache.valid_lengths(len(EXITS) + 1)) == {len(sequence.token_ids) - 1}
    return sequence.answer_ids


class RandomPlanner:
    """Decides at random, among the exits of these indices, but drafts at most steps."""

    def __init__(self, seed, exits=ALL_EXITS):
        self._random, self._exits = random.Random(seed), exits
        self.rates = ExitRates(len(EXITS))

    def begin(self):
        pass

    def plan(self, depth, limit):
        if self._random.random() < 0.2:
            return None
        return ExitPlan(self._random.choice(self._exits), self._random.randint(1, 8))

    def goes_on(self, exit_index, values):
        return self._random.random() < 0.9


def exit_source(passes, seed=0, *, exits=ALL_EXITS, **options):
    """Return a source of guesses at exits, those of these indices, that are drawn at random."""
    return ExitSource(lambda: passes.runner, passes.cache, RandomPlanner(seed, exits), **options)


def drafter_of(*sources, **options):
    """Return a drafter to which nearly every guess seems to pay."""
    core = DraftCore(draft_library(), sources)
    return AdaptiveDrafter(core, linear_costs(4.0, 0.01), None, max_nodes=20, **options)
