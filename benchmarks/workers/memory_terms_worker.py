"""Goes through the stages of a model's life for memory_terms.py and tells its memory after each."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

STATUS = {"VmHWM": "peak", "VmRSS": "resident", "RssAnon": "anon", "RssFile": "file", "RssShmem": "shared"}


def memory() -> dict[str, int]:
    """Return this process's memory in bytes, and how much of it is mapped weights."""
    facts: dict[str, int] = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        field, _, value = line.partition(":")
        if field in STATUS:
            facts[STATUS[field]] = 1024 * int(value.split()[0])
    weights = inside = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            inside = line.endswith("/weights.bin")
        elif inside and line.startswith("Rss:"):
            weights += 1024 * int(line.split()[1])
    facts["weights"] = weights
    return facts


def main() -> None:
    order = json.loads(sys.argv[1])
    stages: list[tuple[str, dict[str, int]]] = []

    def tell(name: str) -> None:
        stages.append((name, memory()))

    tell("python")
    import edge_rt.runtime.model  # noqa: F401 - what `load` imports  # noqa: F401 - what `load` imports
    from edge_rt.package.reader import open_package

    tell("imports")
    package = open_package(Path(order["package"]))
    if order.get("tokenizer"):
        use_tokenizer(package, tell)
    else:
        use_model(package, order, tell)
    print(json.dumps(stages), flush=True)


def use_tokenizer(package: Any, tell: Any) -> None:
    from edge_rt.text.tokenizer import Tokenizer

    info, rows = package.manifest.tokenizer, package.manifest.model.vocab_size
    kept = Tokenizer.from_file(package.file(info.file), info=info, embedding_rows=rows)
    tell("tokenizer")
    kept.decode(range(rows))
    tell("all tokens decoded")
    words = random.Random(0)
    kept.encode_text(" ".join("".join(words.choices("etaoinshrdlu", k=words.randint(2, 12))) for _ in range(60000)))
    tell("60000 words encoded")


def use_model(package: Any, order: dict[str, Any], tell: Any) -> None:
    import edge_rt

    vocab_size = package.manifest.model.vocab_size
    model = edge_rt.load(package.path, ctx=order["ctx"], kv=order.get("kv"), threads=2, spec="off")
    tell("load")
    ids = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [ids.randrange(vocab_size) for _ in range(count)]

    with model.passes() as (runner, _):
        runner.forward(tokens(1), 0, 1)
        tell("one row")
        for rows, depth, logits in order["passes"]:
            runner.forward(tokens(rows), depth, logits)
            tell(f"{rows} rows at {depth}, {logits} logits")
        for count in range(order.get("bindings", 0)):
            runner.forward(tokens(2 + count), 0, 1)
        if order.get("bindings"):
            tell(f"{order['bindings']} shapes")
        if order.get("sampling"):
            use_samplers(runner.forward(tokens(1), 0, 1).logits[0], tell)
    for step in order.get("drafters", ()):
        fill_drafter(step, vocab_size, tell)


def use_samplers(logits: Any, tell: Any) -> None:
    from edge_rt.runtime.config import GenerationConfig
    from edge_rt.runtime.decode.sampling import Sampler

    vocabulary = range(len(logits))
    options: dict[str, Any] = {"temperature": 1.0, "repetition_penalty": 1.1, "presence_penalty": 0.1}
    for name, more in (
        ("sampled", {"top_k": 0, "min_p": 0.0}),
        ("sampled, top-p", {"top_p": 0.95, "min_p": 0.01, "top_k": 1000}),
    ):
        sampler = Sampler(GenerationConfig(**options, **more), len(vocabulary), vocabulary)
        for token in vocabulary:
            sampler.observe(token)
        sampler.sample(logits)
        tell(name)


def fill_drafter(step: dict[str, Any], vocab_size: int, tell: Any) -> None:
    """Fill a drafter's tables with made-up tokens: all different contexts, eight likely tokens each."""
    import numpy as np

    from edge_rt.runtime.decode.draft import Accepted, Draft
    from edge_rt.runtime.forward.outputs import Outputs, TopTokens
    from edge_rt.runtime.speculation.library import draft_library
    from edge_rt.runtime.speculation.text_sources import NativeRecyclingSource, NativeSuffixSource

    count, ids, library = step["count"], random.Random(1), draft_library()
    assert library is not None
    if step["name"] == "suffix":
        source: Any = NativeSuffixSource(library, max_tokens=count)
        source.begin([1])
        many = step.get("distinct", vocab_size)
        for done in range(count * step.get("times", 1)):
            source.extend([min(int(ids.expovariate(1) * many / 8), vocab_size - 1)])
            if done == count - 2:
                tell(f"suffix, {count} tokens ({source.memory_bytes} said)")
        tell(f"suffix, {count * step.get('times', 1)} tokens seen ({source.memory_bytes} said)")
        return
    source = NativeRecyclingSource(library, max_order=2, max_contexts=count)
    source.begin([1])
    for turn in range(count * step.get("times", 1)):
        context = (turn // vocab_size % vocab_size, turn % vocab_size)
        top = TopTokens(
            np.array([[ids.randrange(vocab_size) for _ in range(8)]], np.int32),
            np.full((1, 8), -2.0, np.float32),
            np.zeros(1, np.float32),
        )
        source.observe(Draft(), Accepted((0,), (), 0), Outputs(top.logits, top), context)
        if turn == count - 1:
            tell(f"recycling, {count} contexts ({source.memory_bytes} said)")
    tell(f"recycling, {count * step.get('times', 1)} contexts seen ({source.memory_bytes} said)")


if __name__ == "__main__":
    main()
