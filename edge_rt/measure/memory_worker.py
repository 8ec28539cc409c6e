"""The process whose memory ``edge-rt profile`` measures: loads a model and uses it up to the limits of its plan.

It runs as a separate program, ``python -m edge_rt.measure.memory_worker``. After every stage the process writes a line
of JSON to standard output and waits for a line in reply. So its parent, ``memory_watch``, measures it from outside, and
measuring needs no memory in this process. The first line comes when everything is imported; the reply to it is the
request, a JSON object.
"""

from __future__ import annotations

import functools
import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from edge_rt.device.installed import INSTALLED
from edge_rt.device.names import DeviceName
from edge_rt.device.provider import GpuProviders
from edge_rt.errors import ContextOverflow, EdgeRTError, is_out_of_memory, out_of_memory
from edge_rt.memory.budget import Budget
from edge_rt.memory.terms import longest_stretch
from edge_rt.package.reader import open_package
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft, Drafter
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.forward.outputs import Outputs, TopTokens
from edge_rt.runtime.forward.runner import MAX_KEPT_SHAPES, Runner
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.model import Model
from edge_rt.runtime.speculation.adaptive import AdaptiveDrafter
from edge_rt.runtime.speculation.source import CONTEXT_TOKENS, ForestSource


class DeviceMemory:
    """Compares what is free on a GPU with what was free when this was made.

    What the driver takes when the GPU is opened is there at both moments and does not count. What other programs take
    or give back meanwhile does.
    """

    def __init__(self, name: DeviceName, providers: GpuProviders = INSTALLED) -> None:
        self._free: Callable[[], int] | None = None
        if name.is_own:
            provider = providers.of(name)
            gpu = provider.listed_gpu(name)
            # Memory that is shared with all other programs tells nothing.
            self._free = None if gpu.is_unified else functools.partial(provider.free_bytes, gpu.number)
        self._free_at_first = 0 if self._free is None else self._free()

    def facts(self) -> dict[str, int]:
        """Return what this process takes as ``device_bytes``; nothing where that cannot be measured."""
        return {} if self._free is None else {"device_bytes": max(0, self._free_at_first - self._free())}


ANSWER_TOKENS: Final = 48
MAX_TURN_TOKENS: Final = 160
CHAT_MESSAGES: Final = (
    "Write a short story about a lighthouse keeper who finds a bottle with a letter in it.",
    "Summarize it in three sentences.",
    "Rewrite the story from the view of the person who wrote the letter.",
    "Make a list of the things that are named in both versions.",
    "Repeat the first version, word by word, and change the names.",
    "Explain in detail how a lighthouse works, and name the parts of its lamp.",
)
_TOP_TOKENS: Final = 8
_MAPPED_AT_ONCE: Final = 1 << 16  # bytes of a file that are mapped when one of them is touched
_MAPPED_ROWS: Final = 16  # rows of an embedding that lie in so many bytes, or fewer
_LOOKUPS_PER_BLOCK: Final = 16
_MOST_LOOKUPS: Final = 200_000
# All sampling options are set, because a model's recommended sampling must not change what is measured.
_NUCLEUS: Final = GenerationConfig(
    temperature=1.0, top_k=0, top_p=0.95, min_p=0.0, repetition_penalty=1.0, repetition_guard=False
)
_SAMPLINGS: Final = (
    _NUCLEUS.with_options(repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1),
    _NUCLEUS.with_options(top_p=1.0, repetition_penalty=1.1, frequency_penalty=0.1),
    _NUCLEUS.with_options(top_p=0.9, top_k=40, min_p=0.05, presence_penalty=0.1),
)

Stage = Callable[..., None]


class Drive:
    """Uses a model as much as its plan allows, one stage after another.

    Args:
        tell: called after every stage with its name, and with addresses that the measurement needs.
    """

    def __init__(self, model: Model, tell: Stage) -> None:
        self._model = model
        self._limits = limits = model.plan.choice
        self._tell = tell
        # Not numpy's generator: the memory to load it counts as sampling.
        self._random = random.Random(0)  # noqa: S311
        self._vocab = model.package.manifest.model.vocab_size
        self._is_native = model.package.manifest.op_profile == "native"  # the others compute no trees
        self._nodes = min(limits.draft_max, limits.ctx - 2)

    def run(self) -> None:
        """Run all stages."""
        if self._limits.draft_max:
            self._model.calibrate()
            self._report("calibration")
        self._read_and_write()
        self._report("text")
        with self._model.passes() as (runner, cache):
            cache.truncate(0)
            self._fill(runner, cache, self._limits.ctx - self._nodes - 1)
        self._report("prefill")
        with self._model.passes() as (runner, cache):
            # Of states the one slot and then the other.
            self._verify(runner, cache, is_taken=cache.states is not None)
            self._verify(runner, cache)
        self._report("tree")
        with self._model.passes() as (runner, cache):
            self._all_shapes(runner, cache)
        self._report("shapes")
        with self._model.passes() as (runner, cache):
            self._sample(self._verify(runner, cache))
        self._report("sampling")
        self._fill_tables()
        self._report("drafters")
        self._look_up()
        self._report("corpus")
        # Once more with everything in memory: the longest context, the largest passes, full tables.
        # First a text that cannot be split, with one token per byte.
        self._model.tokenizer.encode_text("7" * longest_stretch(self._limits.ctx))
        with self._model.passes() as (runner, cache):
            # What drafts at exits measures its passes when it is made, and leaves the cache empty.
            cache.truncate(min(cache.length, max(0, self._limits.ctx - self._nodes - 1 - self._limits.prefill_chunk)))
            self._fill(runner, cache, self._limits.ctx - self._nodes - 1)
            self._sample(self._verify(runner, cache))
            known = list(cache.token_ids)
        self._report("together")
        answered = min(ANSWER_TOKENS, self._limits.ctx // 2)
        config = _SAMPLINGS[0].with_options(seed=0, logit_bias=dict.fromkeys(self._model.tokenizer.eos_token_ids, -1e4))
        self._model.generate(known[: self._limits.ctx - answered], config)
        self._report("answer")
        if self._model.slots > 1:
            # Prompts that share nothing, and answers, in all rows and all slots at once.
            rows = min(self._limits.kv_rows // self._limits.slots, self._limits.ctx)
            answered = min(ANSWER_TOKENS, rows // 2)
            prompts = [self._made_up(rows - answered) for _ in range(self._model.slots)]
            for answer in self._model.generate_many(prompts, config, max_tokens=answered):
                if isinstance(answer, EdgeRTError):
                    raise answer
            self._report("slots")

    def _report(self, name: str) -> None:
        with self._model.passes() as (runner, _):
            self._tell(name, cache=runner.cache_address)

    def _made_up(self, count: int) -> list[int]:
        """Return random tokens distributed somewhat like those of texts: a few are frequent, most are rare."""
        draw = self._random.random
        return [int(draw() ** 3 * self._vocab) for _ in range(count)]

    def _read_and_write(self) -> None:
        """Decode as many different tokens as the context holds into text, and encode the text again."""
        tokenizer = self._model.tokenizer
        stream = tokenizer.decode_stream()
        tokens = self._random.sample(range(self._vocab), min(self._limits.ctx, self._vocab))
        tokenizer.encode_prompt("".join(map(stream.push, tokens)))

    def _fill(self, runner: Runner, cache: KVCache, length: int) -> None:
        """Compute random tokens in planned chunks until the cache holds ``length`` rows."""
        while cache.length < length:
            tokens = self._made_up(min(self._limits.prefill_chunk, length - cache.length))
            with cache.reserve(len(tokens)) as rows:
                runner.forward(tokens, rows.start, 1)
                rows.commit(tokens)
            cache.keep_state()

    def _verify(self, runner: Runner, cache: KVCache, *, is_taken: bool = False) -> Outputs:
        """Run the largest draft tree after all rows of the cache, with the logits of every row.

        Args:
            is_taken: whether the pass's result is kept, of no row.
        """
        rows = self._nodes + 1
        parents = [(row - 1) // 2 if self._is_native else row - 1 for row in range(rows)]
        parents[0] = ROOT
        with cache.reserve(rows, parents) as reserved:
            outputs = runner.forward(self._made_up(rows), reserved.start, rows, parents=parents)
            if is_taken:
                reserved.commit([], [])
        self._tell("addresses", logits=int(outputs.logits.ctypes.data))
        return outputs

    def _all_shapes(self, runner: Runner, cache: KVCache) -> None:
        """Run passes of different shapes, small ones first, until no more bindings are cached."""
        length = cache.length
        most = min(self._limits.prefill_chunk, self._limits.ctx, MAX_KEPT_SHAPES)
        cache.truncate(max(0, length - most))
        shapes = (
            (rows, num_logits) for rows in range(1, most + 1) for num_logits in range(1, min(rows, self._nodes + 1) + 1)
        )
        for rows, num_logits in islice(shapes, MAX_KEPT_SHAPES):
            with cache.reserve(rows) as reserved:
                runner.forward(self._made_up(rows), reserved.start, num_logits)
        self._fill(runner, cache, length)

    def _sample(self, outputs: Outputs) -> None:
        """Sample a token from every row, with several settings."""
        for config in _SAMPLINGS:
            sampler = Sampler(config, self._vocab, self._made_up(self._limits.ctx))
            for row in outputs.logits:
                sampler.observe(sampler.sample(row))

    # --- drafters ---

    def _fill_tables(self) -> None:
        """Let the drafters learn until their tables no longer grow: they are full and were truncated once."""
        limits, speculation = self._limits, self._model.speculation
        if not limits.draft_max or limits.spec in ("off", "reference"):
            return
        drafter = speculation.drafter(limits.spec)
        length = limits.ctx - self._nodes - 1
        observed = -(-3 * limits.recycling_contexts // (self._nodes + 1))
        sequence = self._sequence(min(length, 64))
        drafter.begin(sequence)
        for draft, accepted, outputs in self._observations(observed):
            if sequence.room < len(accepted.token_ids) or sequence.is_finished:
                sequence = self._sequence(min(length, 64))
                drafter.begin(sequence)
            self._learn(drafter, sequence, draft, accepted, outputs)
        # Texts of two different tokens make the largest automaton, and it is truncated when it is full.
        for _ in range(-(-5 * limits.suffix_tokens // (4 * length))):
            drafter.begin(self._sequence(length, 2))
        self._draft_from_states(drafter, length)
        if limits.spec == "ngram":
            held = -1
            while speculation.memory_bytes > held:
                held = speculation.memory_bytes
                drafter.begin(self._sequence(length))

    def _draft_from_states(self, drafter: Drafter, length: int) -> None:
        """Let a trained drafter take in a prompt of as many tokens as there can be, and draft behind any token."""
        if self._model.drafter is None:
            return
        sequence = self._sequence(length)
        drafter.begin(sequence)
        draft, accepted, outputs = next(self._observations(1))
        self._learn(drafter, sequence, draft, accepted, outputs)
        drafter.propose(sequence, self._nodes)
        # A step reads the row of its last token in the embedding, which maps the rows around it, too.
        for token in range(0, self._vocab, _MAPPED_ROWS):
            for source in drafter.sources if isinstance(drafter, AdaptiveDrafter) else ():
                if isinstance(source, ForestSource):
                    source.observe(draft, Accepted((token,), (), len(draft)), outputs, ())
                    source.extend((token,))
                    source.forest()

    @staticmethod
    def _learn(drafter: Drafter, sequence: Sequence, draft: Draft, accepted: Accepted, outputs: Outputs) -> None:
        """Let the sources see a step; nobody drafted it, so there is nothing to learn about who drafts well."""
        context = tuple(sequence.token_ids[-CONTEXT_TOKENS:])
        sequence.append(accepted.token_ids)
        for source in drafter.sources if isinstance(drafter, AdaptiveDrafter) else ():
            source.observe(draft, accepted, outputs, context)
            source.extend(accepted.token_ids)

    def _look_up(self) -> None:
        """Look up tokens from all over the corpus, until all of it was touched."""
        corpus = self._model.speculation.corpus
        if corpus is None or not self._limits.suffix_tokens:
            return
        places = corpus.info.num_places
        for _ in range(min(_MOST_LOOKUPS, 256 + _LOOKUPS_PER_BLOCK * corpus.info.size_bytes // _MAPPED_AT_ONCE)):
            found = corpus.find(corpus.context(self._random.randrange(places)))
            corpus.following(found[1])

    def _sequence(self, length: int, different: int | None = None) -> Sequence:
        tokens = self._made_up(length) if different is None else self._random.choices(range(different), k=length)
        return Sequence(tokens, capacity=self._limits.ctx, max_tokens=None, end_ids=())

    def _observations(self, count: int) -> Iterator[tuple[Draft, Accepted, Outputs]]:
        """Yield steps whose draft trees were rejected, with as many likely tokens as are ever kept."""
        nodes = self._nodes
        shape = (nodes + 1, _TOP_TOKENS)
        logits = np.zeros((nodes + 1, 0), np.float32)
        hidden = None
        if self._model.drafter is not None:
            hidden = np.zeros((nodes + 1, self._model.package.manifest.model.hidden_size), np.float32)
        for _ in range(count):
            ids = np.array(self._random.choices(range(self._vocab), k=shape[0] * shape[1]), np.int32).reshape(shape)
            top = TopTokens(ids, np.zeros(shape, np.float32), np.full(nodes + 1, np.log(_TOP_TOKENS), np.float32))
            tokens = tuple(dict.fromkeys(self._random.choices(range(self._vocab), k=nodes)))
            draft = Draft(tokens, (ROOT,) * len(tokens))
            rows = len(draft) + 1
            kept = TopTokens(top.ids[:rows], top.logits[:rows], top.log_sum_exp[:rows])
            states = None if hidden is None else hidden[:rows]
            yield draft, Accepted((int(ids[0, 0]),), (), len(draft)), Outputs(logits[:rows], kept, states)


def chat(model: Model, turns: int, tell: Stage) -> None:
    """Run a conversation of several turns and report each one; it starts over when the context is full."""
    conversation = model.chat()
    for turn in range(turns):
        message = CHAT_MESSAGES[turn % len(CHAT_MESSAGES)]
        most = max(8, min(MAX_TURN_TOKENS, model.context_tokens // 4))
        config = _NUCLEUS.with_options(seed=turn, max_tokens=most)
        try:
            result = conversation.send(message, config)
        except ContextOverflow:
            conversation = model.chat()
            result = conversation.send(message, config)
        tell(f"turn {turn + 1}", tokens=result.usage.total_tokens)


def work(request: dict[str, Any], report: Stage, providers: GpuProviders = INSTALLED) -> None:
    """Run a request, as ``memory_watch.MeasuredProcess`` sends it."""
    budget = Budget(request["budget_bytes"])
    # The process counts with its planned memory, so that the plan made here is the same.
    base = budget.claim("the process", 0, base_bytes=request["base_bytes"], gpu_bytes=request["driver_bytes"])
    options = LoadOptions(
        memory=budget,
        device=request["device"],
        device_memory=request["device_budget_bytes"],
        gpu_providers=providers,
        ctx=request["ctx"],
        kv=request["kv"],
        prefill_chunk=request["prefill_chunk"],
        kv_rows=request["kv_rows"],
        experts=request["experts"],
        threads=request["threads"],
        spec=request["spec"],
        draft_max=request["draft_max"],
        corpus=request["corpus"] and Path(request["corpus"]),
        drafter=request["drafter"] and Path(request["drafter"]),
        slots=request["slots"],
    )
    on_device = DeviceMemory(options.device_name, providers)

    def tell(name: str, **facts: Any) -> None:
        report(name, **facts, **on_device.facts())

    if on_device.facts():
        tell("device")
    model = Model(open_package(Path(request["package"])), options.but(on_load=tell))
    with base, model:
        with model.passes() as (runner, _):
            tell("loaded", cache=runner.cache_address, choice=asdict(model.plan.choice))
        if request["turns"]:
            chat(model, request["turns"], tell)
        else:
            Drive(model, tell).run()
        tell("end")


def main(providers: GpuProviders = INSTALLED) -> None:
    """Answer one request; see ``work``."""
    answers = sys.stdout
    # Other output must not mix with the lines of the reply.
    sys.stdout = sys.stderr

    def tell(name: str, **facts: Any) -> None:
        exchange(name, **facts)

    def exchange(name: str, **facts: Any) -> str:
        answers.write(json.dumps({"stage": name, **facts}) + "\n")
        answers.flush()
        if not (reply := sys.stdin.readline()):
            sys.exit("the parent process has closed the pipe")
        return reply

    try:
        # The request is made when the memory of this process is known.
        work(json.loads(exchange("runtime")), tell, providers)
    except EdgeRTError as error:
        tell("error", error=error.to_json())
    except (MemoryError, OSError, ImportError) as error:
        if not is_out_of_memory(error):
            raise
        tell("error", error=out_of_memory(error).to_json())


if __name__ == "__main__":
    main()
