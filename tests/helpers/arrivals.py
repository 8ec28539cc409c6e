"""Answers that come and leave while others are computed, in the passes of one model."""

from __future__ import annotations

from tests.helpers.models import load_package
from tests.helpers.small import GREEDY

CONTEXT = 192
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.1}
MODES = ("auto", "suffix", "ngram", "recycling", "reference", "off")


def random_requests(rng, count, most=400):
    """Return prompts with the options of their answers: greedy or seeded, of all lengths, some of them in a format."""
    requests = []
    for number in range(count):
        prompt = rng.integers(10, most, int(rng.choice([2, 5, 30, 100]))).tolist()
        options = {"max_tokens": int(rng.integers(1, 24)), "repetition_guard": False}
        options |= GREEDY if number % 2 else SAMPLED | {"seed": number}
        if number % 3 == 0:
            options["logprobs"] = 2
        if number % 8 == 5:
            options = {"max_tokens": 16, "regex": "yes|no|perhaps", "temperature": 0.0}
        requests.append((prompt, options))
    return requests


def facts(result):
    return result.token_ids, result.finish_reason, result.text, result.logprobs


def arrivals(model, count, start, rng):
    """Yield the number and result of so many answers, which come and leave in the middle of others.

    Args:
        start: returns the stream of a number.
    """
    waiting, streams = list(range(count)), {}
    while waiting or streams:
        if waiting and (not streams or rng.random() < 0.3):
            number = waiting.pop(0)
            stream = start(number)
            streams[number] = stream, iter(stream)
        number = int(rng.choice(list(streams)))
        stream, events = streams[number]
        event = next(events, None)
        model._batch.check()
        if event is not None and rng.random() < 0.02:
            stream.cancel()
        elif event is not None and rng.random() < 0.02:
            events.close()
        elif event is not None:
            continue
        for _ in events:
            pass
        yield number, stream.result()
        del streams[number]
        model._batch.check()


def is_whole(result, expected):
    """Check an answer, or the part of a cancelled one, against the one alone; return whether it was not cancelled."""
    if result.finish_reason == "cancelled":
        assert result.token_ids == expected.token_ids[: len(result.token_ids)]
        return False
    assert facts(result) == facts(expected)
    return True


def check_arrivals(package, rng, count, *, kv, slots, modes=MODES, most=400, **loading):
    """Compare answers that come and leave in shared passes with those alone; return how many were not cancelled."""
    requests = random_requests(rng, count, most)
    with load_package(package, ctx=CONTEXT, kv=kv, spec="off") as model:
        alone = [model.generate(prompt, **options) for prompt, options in requests]
    with load_package(package, ctx=CONTEXT, kv=kv, slots=slots, prefill_chunk=32, **loading) as model:
        assert model.slots == slots

        def start(number):
            prompt, options = requests[number]
            mode = modes[number % len(modes)]
            reference = alone[number].text or "a text"
            drafting = {"spec": mode} | ({"reference": reference} if mode == "reference" else {})
            return model.stream(prompt, **options, **drafting)

        return sum(is_whole(result, alone[number]) for number, result in arrivals(model, count, start, rng))
