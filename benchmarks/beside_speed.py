"""What drafting beside passes gains where a device verifies: a stated time for a pass, answers replayed.

Answers are drawn once, by the model on the CPU. Then a stand-in for a device says their tokens again, and sleeps for
the stated time in every pass, as a thread does that waits for a GPU. The same package drafts on the CPU, beside these
passes or behind them, in turns; so acceptance is that of the model with its own sampled text::

    python benchmarks/beside_speed.py PACKAGE --pass-ms 20 40 80

Printed for each time of a pass: the ratio of the speeds with its 95 % interval, and of the answers beside passes what
drafting took, and what it took less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from alternating import bootstrap

import edge_rt
from edge_rt.measure.prompts import built_in_prompts
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.loop import Decoding, decode
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.sequence import Sequence as Text
from edge_rt.runtime.forward.outputs import Outputs, TopTokens
from edge_rt.runtime.model import Model
from edge_rt.runtime.results import SpecStats
from edge_rt.runtime.speculation.adaptive import AdaptiveDrafter
from edge_rt.runtime.speculation.beside import Beside, added_ms
from edge_rt.runtime.speculation.core import DraftCore
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.runtime.speculation.draft_model import DraftModel
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.model_source import ChainCosts, ModelSource, Way
from edge_rt.runtime.speculation.source import MAX_CHAIN

ROW = 0.02
"""What a further row adds to a pass of the device, as a share of one over one row."""


class Replayed:
    """Says a known text again, slowly; what follows other tokens is none of it."""

    def __init__(self, token_ids: Sequence[int], vocabulary: int, ms: float) -> None:
        self._text, self._ms = list(token_ids), ms
        self._logits = np.zeros((1, vocabulary), np.float32)

    def forward(
        self, token_ids: Sequence[int], start: int, num_logits: int, *, parents: Sequence[int] | None = None
    ) -> Outputs:
        """Sleep, and return the next tokens of the text behind every row that is of it."""
        time.sleep(1e-3 * self._ms * (1.0 + ROW * (len(token_ids) - 1)))
        places: list[int] = []
        for row, token in enumerate(token_ids):
            parent = row - 1 if parents is None else parents[row]
            before = start - 1 if parent < 0 else places[parent]
            is_right = before is not None and before + 1 < len(self._text) and self._text[before + 1] == token
            places.append(before + 1 if is_right else len(self._text))
        ids = [self._text[place + 1] if place + 1 < len(self._text) else 0 for place in places[-num_logits:]]
        top = TopTokens(np.array(ids, np.int32)[:, None], np.ones((len(ids), 1), np.float32), np.full(len(ids), 1.1))
        return Outputs(np.broadcast_to(self._logits, (len(ids), self._logits.shape[1])), top)


def main() -> None:
    """Parse options, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package")
    parser.add_argument("--pass-ms", type=float, nargs="+", default=[20.0, 40.0, 80.0])
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    mode = f"model:{args.package}"
    with edge_rt.load(args.package, spec=mode, ctx=1024, device="cpu") as model:
        # Nothing ends an answer.
        endless = dict.fromkeys(model.package.manifest.tokenizer.eos_token_ids, -1e4)
        texts = []
        for prompt in built_in_prompts()[: args.prompts]:
            found = model.generate(
                prompt.text,
                max_tokens=args.tokens,
                temperature=args.temperature,
                seed=1,
                spec="off",
                logit_bias=endless,
            )
            texts.append((model.encode(prompt.text), list(found.token_ids)))
        drafter = model.speculation.drafter(mode)
        assert isinstance(drafter, AdaptiveDrafter)
        (source,) = drafter.sources
        assert isinstance(source, ModelSource)
        second = source.ways[0].model
        assert isinstance(second, DraftModel)
        second.begin(list(range(100, 164)))
        draft_ms = min(milliseconds(lambda: second.follow([])) for _ in range(20))
        print(f"a pass of the second model takes {draft_ms:.1f} ms alone")
        for pass_ms in args.pass_ms:
            compare(model, second, texts, draft_ms, pass_ms, args.rounds)


def milliseconds(body: Callable[[], object]) -> float:
    """Return the milliseconds that something takes."""
    started = time.perf_counter()
    body()
    return 1e3 * (time.perf_counter() - started)


def compare(
    model: Model,
    second: DraftModel,
    texts: Sequence[tuple[list[int], list[int]]],
    draft_ms: float,
    pass_ms: float,
    rounds: int,
) -> None:
    """Answer with drafts beside passes and behind them, in turns, and print what that gives."""
    share = added_ms(lambda: time.sleep(1e-3 * pass_ms), lambda: second.follow([]))[0] / draft_ms
    alone = RowCosts((1,), (0,), ((draft_ms,),))
    whole = RowCosts((1, 2), (0,), ((pass_ms, pass_ms * (1.0 + ROW)),))
    drafters = {}
    for beside in (False, True):
        planner = ChainCosts(whole, alone, MAX_CHAIN, prior=0.6, hides=beside)
        helper = Beside(second, alone, share, planner.value_of) if beside else None
        source = ModelSource([Way(second, planner, helper)], beside="on" if beside else None)
        drafters[beside] = AdaptiveDrafter(DraftCore(draft_library(), [source]), whole, None, max_nodes=MAX_CHAIN)
    ratios, stats = [], {False: [], True: []}
    for turn in range(rounds):
        for prompt, answer in texts:
            speeds = {}
            # Who is first alternates.
            for beside in (False, True) if turn % 2 else (True, False):
                ms, spec = answered(model, drafters[beside], prompt, answer, pass_ms)
                speeds[beside] = len(answer) / ms
                stats[beside].append(spec)
            ratios.append(speeds[True] / speeds[False])
    low, high = bootstrap(ratios)
    print(
        f"pass of {pass_ms:.0f} ms, to which one beside it adds {100 * share:.0f} % of its time: "
        f"{median(ratios):.3f} ({low:.3f} to {high:.3f})"
    )
    for beside, name in ((False, "behind"), (True, "beside")):
        steps = sum(spec.steps for spec in stats[beside])
        drafting, hidden, passes, gave, rows, tokens = (
            sum(number(spec) for spec in stats[beside])
            for number in (
                lambda spec: spec.drafting_ms,
                lambda spec: spec.hidden_ms,
                lambda spec: spec.beside_n,
                lambda spec: spec.beside_drafted,
                lambda spec: spec.rows_drafted,
                lambda spec: spec.tokens_per_step * spec.steps,
            )
        )
        print(
            f"  {name}: {drafting / steps:.1f} ms of drafting a step and {hidden / steps:.1f} ms hidden, "
            f"{passes} passes beside gave {gave} drafted tokens, {rows} rows, {tokens / steps:.2f} tokens a step"
        )


def answered(
    model: Model, drafter: AdaptiveDrafter, prompt: list[int], answer: list[int], pass_ms: float
) -> tuple[float, SpecStats]:
    """Say an answer again; return the milliseconds behind its first token, and the statistics."""
    size = model.package.manifest.model.vocab_size
    cache = KVCache(1024, row_map=np.arange(1024, dtype=np.int32))
    text = Text(prompt, capacity=1024, max_tokens=len(answer), end_ids=())
    sampler = Sampler(GenerationConfig(temperature=0.0), size, prompt)
    decoding = Decoding(text, drafter, cache, sampler)
    target = Replayed([*prompt, *answer], size, pass_ms)
    started = 0.0
    for _ in decode(decoding, target):
        started = started or time.perf_counter()
    ms = 1e3 * (time.perf_counter() - started)
    assert text.answer_ids == answer, "another text"
    return ms, drafter.statistics("model")


if __name__ == "__main__":
    main()
