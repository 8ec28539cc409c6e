"""A model without a graph: logits that depend on the whole history, and a record of what was computed."""

from __future__ import annotations

import time
import zlib
from contextlib import nullcontext

import numpy as np

from edge_rt.errors import Cancelled
from edge_rt.export.families.rope import default_rope
from edge_rt.package.decoder import Dimensions
from edge_rt.package.layers import Layer
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.detokenizer import TextStream
from edge_rt.runtime.decode.draft import Accepted, Draft, NullDrafter
from edge_rt.runtime.decode.repetition import RepetitionGuard
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.forward.outputs import Outputs, TopTokens
from edge_rt.runtime.generation import Generation, Held
from edge_rt.runtime.stream import Outcome

VOCABULARY = 50
GARBAGE = -1
TOP_K = 8


def tiny_model(**changes):
    """Return the description of a tiny model whose dimensions differ in some numbers."""
    numbers = {
        "name": "fake", "family": "llama", "hidden_size": 8, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1,
        "head_dim": 8, "intermediate_size": 8, "vocab_size": VOCABULARY, "context_length": 4096, "is_tied": True,
    }  # fmt: skip
    windows = changes.pop("layer_windows", None)
    dims = Dimensions(**(numbers | changes))
    windows = windows or (0,) * dims.num_layers
    layers = tuple(Layer(dims.attention(window=window), dims.feed_forward()) for window in windows)
    return dims.decoder("llama", layers, default_rope(1e4, dims.head_dim))


def fake_cache(capacity=256):
    """Return a cache whose rows nobody writes; ``FakeTarget`` keeps rows of its own."""
    return KVCache(capacity, row_map=np.arange(capacity, dtype=np.int32))


class FakeTarget:
    """Computes logits from the tokens in its rows; a row that was never written, or broken, changes them.

    Args:
        stop_at: index of the pass that is stopped, after it has spoilt its rows.
        fail_at: exception by index of the pass.

    Attributes:
        row_map: logical row -> row in memory, the cache's; None: as they are counted.
        passes: (first row, tokens, wanted logits) of every pass.
    """

    def __init__(self, *, stop_at=None, fail_at=None):
        self.row_map = None
        self.passes = []
        self.stop_at = stop_at
        self.fail_at = fail_at or {}
        self._memory = []

    @property
    def rows(self):
        """Token of every row ever written, in the order of the cache."""
        return [self._memory[place] for place in self._places(0, len(self._memory))]

    @rows.setter
    def rows(self, token_ids):
        self._memory = list(token_ids)

    def _places(self, start, end):
        # At once: a number of NumPy's for every row would be most of what a fake pass takes.
        return range(start, end) if self.row_map is None else self.row_map[start:end].tolist()

    def _write(self, start, token_ids):
        self._memory += [GARBAGE] * (start + len(token_ids) - len(self._memory))
        for place, token in zip(self._places(start, start + len(token_ids)), token_ids, strict=True):
            self._memory[place] = token

    def forward(self, token_ids, start, num_logits, *, parents=None):
        index = len(self.passes)
        self.passes.append((start, tuple(token_ids), num_logits))
        assert start <= len(self._memory)
        assert 1 <= num_logits <= len(token_ids)
        self._write(start, [GARBAGE] * len(token_ids))
        if index == self.stop_at:
            raise Cancelled("The run was stopped.")
        if index in self.fail_at:
            raise self.fail_at[index]
        self._write(start, token_ids)
        parents = range(-1, len(token_ids) - 1) if parents is None else parents
        before, histories = self.rows[:start], []
        for token, parent in zip(token_ids, parents, strict=True):
            histories.append([*(histories[parent] if parent >= 0 else before), token])
        logits = np.stack([self.logits(history) for history in histories[-num_logits:]])
        order = np.argsort(-logits, axis=-1, kind="stable")[:, :TOP_K].astype(np.int32)
        sums = np.log(np.exp(logits).sum(axis=-1))
        return Outputs(logits, TopTokens(order, np.take_along_axis(logits, order, -1), sums))

    @staticmethod
    def logits(history):
        """Return the float32 logits that follow a history."""
        seed = zlib.crc32(np.asarray(history, np.int64).tobytes())
        return np.random.default_rng(seed).standard_normal(VOCABULARY).astype(np.float32) * np.float32(2)

    @property
    def computed(self):
        """Tokens of all passes, recomputed ones counted again."""
        return sum(len(tokens) for _, tokens, _ in self.passes)


class LetterDecoder:
    """Shows token i as the letter of that index, so that the text tells the tokens."""

    def __init__(self):
        self.count = 0

    def push(self, token_id):
        self.count += 1
        return chr(ord("A") + token_id)

    def flush(self):
        return ""


class ScriptedTarget(FakeTarget):
    """Answers a prompt with the tokens 0, 1, 2, ...

    Args:
        prompt_tokens: length of the prompt.
    """

    def __init__(self, prompt_tokens):
        super().__init__()
        self._prompt_tokens = prompt_tokens

    def logits(self, history):
        logits = np.zeros(VOCABULARY, np.float32)
        logits[len(history) - self._prompt_tokens] = 1
        return logits


class WordDecoder(LetterDecoder):
    """Shows token i as a given text.

    Args:
        words: these texts.
    """

    def __init__(self, words):
        super().__init__()
        self._words = words

    def push(self, token_id):
        return self._words[token_id]


class ScriptedDrafter:
    """Proposes what a function of (the answer so far, limit) returns: a draft, or the tokens of a chain.

    Attributes:
        begun: sequences it was given.
        seen: outcomes it was told.
    """

    def __init__(self, script):
        self.script = script
        self.begun = []
        self.seen: list[Accepted] = []

    def begin(self, sequence):
        self.begun.append(sequence)

    def propose(self, sequence, limit):
        draft = self.script(sequence.answer_ids, limit)
        return draft if isinstance(draft, Draft) else Draft.chain(draft)

    def pass_begins(self, draft):
        draft.check()

    def pass_ends(self, *, quietly=False):
        pass

    def observe(self, draft, accepted, outputs):
        assert outputs.logits.shape == (len(draft) + 1, VOCABULARY)
        assert accepted.num_drafted == len(draft)
        self.seen.append(accepted)

    def statistics(self, mode, taken_back=0):
        return None


class Run:
    """One generation on a fake target, step by step.

    Attributes:
        sequence, target, cache: its parts.
        text: what was decoded.
    """

    def __init__(
        self,
        prompt,
        *,
        target=None,
        cache=None,
        drafter=None,
        chunk=8,
        end_ids=(),
        on_prefill=None,
        cancel=None,
        decoder=None,
        thoughts=None,
        tools=None,
        **options,
    ):
        config = GenerationConfig(**({"temperature": 0.0} | options))
        self.target = target if target is not None else FakeTarget()
        self.cache = cache if cache is not None else fake_cache()
        self.target.row_map = self.cache._row_map
        self.sequence = Sequence(prompt, capacity=self.cache.capacity, max_tokens=config.max_tokens, end_ids=end_ids)
        self.text = TextStream(decoder or LetterDecoder(), config.stop)
        self.cancel = cancel or CancelToken()
        self._generation = Generation(
            self.sequence, lambda _: nullcontext(Held(self.target, drafter or NullDrafter())), self.cache,
            Sampler(config, VOCABULARY, prompt), self.text, chunk=chunk, called=time.perf_counter(),
            on_prefill=on_prefill, guard=RepetitionGuard(lambda token_id: b"word") if config.repetition_guard else None,
            thoughts=thoughts, tools=tools,
        )  # fmt: skip

    def check(self):
        """Assert what holds whenever an event is yielded, and after the end."""
        self.cache.check()
        assert self.cache.token_ids == tuple(self.sequence.token_ids[: self.cache.length])
        assert self.target.rows[: self.cache.length] == list(self.cache.token_ids)

    def result(self, on_event=None):
        """Run to the end, checking every step, and return the result."""
        outcome = Outcome(self.cancel, None)
        for event in self._generation.events(outcome):
            if event.token_ids:
                assert self.cache.length == len(self.sequence.token_ids) - 1
            self.check()
            if on_event is not None:
                on_event(event)
        self.check()
        return outcome.result
