from __future__ import annotations

import pytest

from edge_rt.errors import ConfigError, ContextOverflow, InferenceError
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.draft import NullDrafter
from edge_rt.runtime.decode.loop import Decoding
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.generation import usable_ids
from tests.helpers.fake_model import VOCABULARY, FakeTarget, Run, ScriptedDrafter, fake_cache

PROMPT = [5, 6, 7]
LONG_PROMPT = [(7 * i) % VOCABULARY for i in range(30)]
SAMPLED = {
    "temperature": 0.9,
    "top_k": 12,
    "top_p": 0.9,
    "seed": 11,
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
}


def letters(token_ids):
    return "".join(chr(ord("A") + token) for token in token_ids)


class TestPlain:
    def test_greedy_takes_the_most_likely_token_of_every_history(self):
        result = Run(PROMPT, max_tokens=6).result()

        history = list(PROMPT)
        for token in result.token_ids:
            assert token == FakeTarget.logits(history).argmax()
            history.append(token)
        assert result.text == letters(result.token_ids)

    def test_every_token_is_computed_once(self):
        run = Run(LONG_PROMPT, chunk=8, max_tokens=5)
        run.result()
        assert run.target.computed == len(LONG_PROMPT) + 5 - 1
        assert [start for start, _, _ in run.target.passes] == [0, 8, 16, 24, 30, 31, 32, 33]

    @pytest.mark.parametrize("chunk", [1, 2, 7, 8, 29, 30, 31, 1000])
    def test_chunks_do_not_change_the_answer(self, chunk):
        run = Run(LONG_PROMPT, chunk=chunk, max_tokens=4)
        assert run.result().token_ids == Run(LONG_PROMPT, max_tokens=4).result().token_ids
        assert max(len(tokens) for _, tokens, _ in run.target.passes) <= max(chunk, 1)
        assert run.target.computed == len(LONG_PROMPT) + 3

    def test_logits_are_asked_for_the_last_row_only(self):
        run = Run(LONG_PROMPT, max_tokens=3)
        run.result()
        assert {wanted for _, _, wanted in run.target.passes} == {1}

    def test_prefill_progress_counts_computed_tokens(self):
        seen = []
        Run(LONG_PROMPT, chunk=8, max_tokens=1, on_prefill=lambda *numbers: seen.append(numbers)).result()
        assert seen == [(8, 30), (16, 30), (24, 30)]

    def test_a_prompt_that_begins_alike_computes_the_rest(self):
        first = Run(LONG_PROMPT, max_tokens=4)
        answer = first.result().token_ids
        target = FakeTarget()
        target.rows = list(first.target.rows)
        longer = [*LONG_PROMPT, *answer, 1, 2]
        second = Run(longer, target=target, cache=first.cache, max_tokens=2)

        result = second.result()

        # The answer's last token was emitted, but never computed.
        assert result.usage.cached_tokens == len(LONG_PROMPT) + 3
        assert target.passes[0] == (len(LONG_PROMPT) + 3, (answer[-1], 1, 2), 1)
        assert result.token_ids == Run(longer, max_tokens=2).result().token_ids

    def test_the_same_prompt_again_computes_its_last_token(self):
        first = Run(PROMPT, max_tokens=1)
        expected = first.result().token_ids
        target = FakeTarget()
        target.rows = list(first.target.rows)
        result = Run(PROMPT, target=target, cache=first.cache, max_tokens=1).result()
        assert target.passes == [(2, (7,), 1)]
        assert result.token_ids == expected

    def test_another_prompt_rolls_the_cache_back(self):
        first = Run([1, 2, 3, 4], max_tokens=3)
        first.result()
        target = FakeTarget()
        target.rows = list(first.target.rows)
        other = Run([1, 2, 9, 9], target=target, cache=first.cache, max_tokens=3)
        assert other.result().token_ids == Run([1, 2, 9, 9], max_tokens=3).result().token_ids
        assert target.passes[0] == (2, (9, 9), 1)


class TestEnd:
    def test_max_tokens(self):
        result = Run(PROMPT, max_tokens=4).result()
        assert (result.finish_reason, result.usage.completion_tokens) == ("length", 4)
        assert (result.usage.prompt_tokens, result.usage.total_tokens) == (3, 7)

    def test_end_token(self):
        plain = Run(PROMPT, max_tokens=4).result().token_ids
        result = Run(PROMPT, max_tokens=10, end_ids=(plain[2],)).result()
        assert result.finish_reason == "stop"
        assert result.token_ids == plain[: plain.index(plain[2]) + 1]
        assert result.stop_string is None

    def test_end_token_that_is_also_the_last_allowed_one_is_a_stop(self):
        plain = Run(PROMPT, max_tokens=1).result().token_ids
        assert Run(PROMPT, max_tokens=1, end_ids=plain).result().finish_reason == "stop"

    def test_context_full(self):
        run = Run(PROMPT, cache=fake_cache(capacity=9))
        result = run.result()
        assert (result.finish_reason, result.usage.total_tokens) == ("context_full", 9)
        assert run.cache.length == 8

    def test_a_prompt_that_leaves_room_for_one_token(self):
        assert Run([1] * 8, cache=fake_cache(capacity=9)).result().finish_reason == "context_full"

    def test_max_tokens_that_fill_the_context_end_by_length(self):
        assert Run([1] * 5, cache=fake_cache(capacity=9), max_tokens=4).result().finish_reason == "length"

    def test_stop_text_is_cut_out_and_told(self):
        plain = Run(PROMPT, max_tokens=8).result()
        result = Run(PROMPT, max_tokens=8, stop=(plain.text[3:5], "unseen")).result()
        assert (result.finish_reason, result.stop_string) == ("stop", plain.text[3:5])
        assert result.text == plain.text[: plain.text.index(plain.text[3:5])]
        assert result.token_ids == plain.token_ids[:5]

    def test_an_end_token_is_no_part_of_the_next_prompt(self):
        assert usable_ids([4, 5, 2], frozenset({2})) == [4, 5]
        assert usable_ids([4, 5], frozenset({2})) == [4, 5]
        assert usable_ids([], frozenset({2})) == []


class TestSequence:
    def test_empty_prompt(self):
        with pytest.raises(ConfigError, match="prompt is empty"):
            Sequence([], capacity=9, max_tokens=1, end_ids=())

    @pytest.mark.parametrize(
        ("prompt_tokens", "max_tokens", "reserved"),
        [(9, None, 1), (10, None, 1), (8, 2, 2), (1, 9, 9), (10_000, None, 1)],
    )
    def test_overflow_gives_its_three_numbers(self, prompt_tokens, max_tokens, reserved):
        with pytest.raises(ContextOverflow) as caught:
            Sequence([1] * prompt_tokens, capacity=9, max_tokens=max_tokens, end_ids=())
        error = caught.value
        assert (error.prompt_tokens, error.requested_tokens, error.context_tokens) == (prompt_tokens, reserved, 9)
        assert f"Prompt {prompt_tokens} tokens + {reserved} reserved > context 9." in str(error)

    def test_exactly_full_is_allowed(self):
        assert Sequence([1] * 7, capacity=9, max_tokens=2, end_ids=()).room == 2

    def test_the_first_reason_stays(self):
        sequence = Sequence([1], capacity=9, max_tokens=1, end_ids=())
        sequence.append([4])
        sequence.finish("cancelled")
        assert sequence.finish_reason == "length"


def right(answer):
    return lambda so_far, limit: answer[len(so_far) :][:limit]


def wrong(answer):
    return lambda so_far, limit: [(token + 1) % VOCABULARY for token in answer[len(so_far) :][:limit]]


def half_right(answer):
    def propose(so_far, limit):
        draft = list(answer[len(so_far) : len(so_far) + 4])
        return [*draft[:2], *[(token + 1) % VOCABULARY for token in draft[2:]]][:limit]

    return propose


def too_long(answer):
    return lambda so_far, limit: [*answer[len(so_far) :], *[3] * 40]


def now_and_then(answer):
    return lambda so_far, limit: answer[len(so_far) :][:limit][:3] if len(so_far) % 2 else ()


class TestDrafts:
    """Whatever is drafted, the tokens are those of plain decoding."""

    @pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
    @pytest.mark.parametrize("make", [right, wrong, half_right, too_long, now_and_then])
    def test_the_text_does_not_depend_on_the_draft(self, make, options):
        plain = Run(LONG_PROMPT, max_tokens=20, **options).result()
        drafter = ScriptedDrafter(make(plain.token_ids))
        run = Run(LONG_PROMPT, drafter=drafter, max_tokens=20, **options)

        result = run.result()

        assert result.token_ids == plain.token_ids
        assert result.text == plain.text
        assert result.finish_reason == plain.finish_reason == "length"
        assert sum(len(accepted.token_ids) for accepted in drafter.seen) == 20

    def test_right_drafts_save_passes(self):
        plain = Run(PROMPT, max_tokens=20).result()
        run = Run(PROMPT, drafter=ScriptedDrafter(right(plain.token_ids)), max_tokens=20)
        run.result()
        assert len(run.target.passes) == 1
        assert run.target.passes[0][2] == 20

    def test_wrong_drafts_leave_no_rows(self):
        plain = Run(PROMPT, max_tokens=5).result()
        run = Run(PROMPT, drafter=ScriptedDrafter(wrong(plain.token_ids)), max_tokens=5)
        run.result()
        assert run.cache.token_ids == (*PROMPT, *plain.token_ids[:-1])

    def test_end_tokens_in_a_draft_end_the_answer(self):
        plain = Run(PROMPT, max_tokens=8).result().token_ids
        end = plain[3]
        expected = Run(PROMPT, max_tokens=8, end_ids=(end,)).result()
        drafted = ScriptedDrafter(right([*plain, 1, 1, 1]))
        result = Run(PROMPT, drafter=drafted, max_tokens=8, end_ids=(end,)).result()
        assert result.token_ids == expected.token_ids
        assert result.finish_reason == "stop"

    def test_wrong_end_tokens_in_a_draft_do_not(self):
        end = VOCABULARY - 1
        plain = Run(PROMPT, max_tokens=8, end_ids=(end,), logit_bias={end: -100.0}).result()
        drafter = ScriptedDrafter(lambda so_far, limit: [end] * min(limit, 3))
        result = Run(PROMPT, drafter=drafter, max_tokens=8, end_ids=(end,), logit_bias={end: -100.0}).result()
        assert (result.token_ids, result.finish_reason) == (plain.token_ids, "length")

    @pytest.mark.parametrize("length", [1, 2])
    def test_tokens_behind_a_stop_text_are_taken_back(self, length):
        plain = Run(PROMPT, max_tokens=12).result()
        stop = plain.text[4 : 4 + length]
        expected = Run(PROMPT, max_tokens=12, stop=(stop,)).result()
        run = Run(PROMPT, drafter=ScriptedDrafter(right(plain.token_ids)), max_tokens=12, stop=(stop,))

        result = run.result()

        assert (result.token_ids, result.text) == (expected.token_ids, expected.text)
        assert (result.finish_reason, result.stop_string) == ("stop", stop)
        assert run.cache.length == len(PROMPT) + len(result.token_ids) - 1

    def test_drafts_end_where_the_context_does(self):
        cache = fake_cache(capacity=12)
        plain = Run(PROMPT, cache=fake_cache(capacity=12)).result()
        result = Run(PROMPT, cache=cache, drafter=ScriptedDrafter(too_long(plain.token_ids))).result()
        assert (result.token_ids, result.finish_reason) == (plain.token_ids, "context_full")


class TestInterruption:
    def test_cancelled_before_the_first_token(self):
        cancel = CancelToken()
        target = FakeTarget(stop_at=2)
        run = Run(LONG_PROMPT, target=target, chunk=8, cancel=cancel, max_tokens=4)
        result = run.result()
        assert (result.finish_reason, result.token_ids, result.text) == ("cancelled", (), "")
        assert run.cache.length == 0

    def test_cancelled_prefill_keeps_what_the_prompt_shared(self):
        first = Run(LONG_PROMPT[:10], max_tokens=1)
        first.result()
        target = FakeTarget(stop_at=1)
        target.rows = list(first.target.rows)
        run = Run(LONG_PROMPT, target=target, cache=first.cache, chunk=8, max_tokens=4)
        assert run.result().finish_reason == "cancelled"
        assert run.cache.token_ids == tuple(LONG_PROMPT[:10])

    def test_stopped_inside_a_decode_pass_keeps_whole_steps(self):
        plain = Run(PROMPT, max_tokens=6).result()
        run = Run(PROMPT, target=FakeTarget(stop_at=3), max_tokens=6)
        result = run.result()
        assert (result.finish_reason, result.token_ids) == ("cancelled", plain.token_ids[:3])
        assert run.cache.token_ids == (*PROMPT, *plain.token_ids[:2])

    def test_thrown_between_two_tokens(self):
        plain = Run(PROMPT, max_tokens=6).result()
        run = Run(PROMPT, max_tokens=6)
        result = run.result(lambda event: run.cancel.cancel() if len(run.sequence.answer_ids) == 2 else None)
        assert (result.finish_reason, result.token_ids) == ("cancelled", plain.token_ids[:2])
        assert len(run.target.passes) == 2

    def test_thrown_with_the_last_token_is_too_late(self):
        run = Run(PROMPT, max_tokens=2)
        result = run.result(lambda event: run.cancel.cancel() if len(run.sequence.answer_ids) == 2 else None)
        assert result.finish_reason == "length"

    def test_cancelled_shows_what_a_stop_text_held_back(self):
        plain = Run(PROMPT, max_tokens=6).result()
        run = Run(PROMPT, max_tokens=6, stop=(plain.text[1] + "?",))
        result = run.result(lambda event: run.cancel.cancel() if len(run.sequence.answer_ids) == 2 else None)
        assert result.text == plain.text[:2]

    @pytest.mark.parametrize("fail_at", [0, 1, 3, 4, 6])
    def test_a_failing_pass_leaves_the_cache_whole(self, fail_at):
        cache = fake_cache()
        target = FakeTarget(fail_at={fail_at: InferenceError("broken")})
        with pytest.raises(InferenceError, match="broken"):
            Run(LONG_PROMPT, target=target, cache=cache, chunk=8, max_tokens=6).result()
        cache.check()
        target.fail_at = {}

        again = Run(LONG_PROMPT, target=target, cache=cache, chunk=8, max_tokens=6)

        assert again.result().token_ids == Run(LONG_PROMPT, max_tokens=6).result().token_ids

    def test_a_failing_drafter_leaves_the_cache_whole(self):
        def script(so_far, limit):
            if len(so_far) == 2:
                raise ValueError("drafter")
            return ()

        cache = fake_cache()
        target = FakeTarget()
        with pytest.raises(ValueError, match="drafter"):
            Run(PROMPT, target=target, cache=cache, drafter=ScriptedDrafter(script), max_tokens=6).result()
        again = Run(PROMPT, target=target, cache=cache, max_tokens=6)
        assert again.result().token_ids == Run(PROMPT, max_tokens=6).result().token_ids


class TestCancelToken:
    def test_callbacks_run_once_thrown_and_not_after_unsubscribing(self):
        calls = []
        token = CancelToken()
        unsubscribe = token.on_cancel(lambda: calls.append("a"))
        token.on_cancel(lambda: calls.append("b"))
        unsubscribe()
        token.cancel()
        assert (calls, token.cancelled) == (["b"], True)

    def test_a_thrown_token_calls_back_at_once(self):
        token = CancelToken()
        token.cancel()
        calls = []
        token.on_cancel(lambda: calls.append(1))
        assert calls == [1]


class TestHalves:
    """A step whose halves somebody else joins."""

    def start(self, prompt, *, drafter=None, **options):
        config = GenerationConfig(**({"temperature": 0.0, "max_tokens": 12} | options))
        cache, target = fake_cache(), FakeTarget()
        target.row_map = cache.row_map
        sequence = Sequence(prompt, capacity=cache.capacity, max_tokens=config.max_tokens, end_ids=())
        decoding = Decoding(sequence, drafter or NullDrafter(), cache, Sampler(config, VOCABULARY, prompt))
        return decoding, target

    def compute(self, decoding, target, most=None):
        part = decoding.prepare(most)
        wanted = max(part.num_logits, 1)
        decoding.choose(target.forward(part.token_ids, part.start, wanted, parents=part.parents))
        return decoding.commit()

    @pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
    def test_steps_of_two_sequences_give_the_texts_of_each_alone(self, options):
        prompts = (PROMPT, LONG_PROMPT)
        alone = [Run(prompt, max_tokens=12, **options).result().token_ids for prompt in prompts]
        drafters = [ScriptedDrafter(half_right(answer)) for answer in alone]
        pairs = [
            self.start(prompt, drafter=drafter, **options) for prompt, drafter in zip(prompts, drafters, strict=True)
        ]
        for decoding, _ in pairs:
            decoding.begin()
        while under_way := [pair for pair in pairs if not pair[0].sequence.is_finished]:
            parts = [decoding.prepare(7) for decoding, _ in under_way]
            for (decoding, target), part in zip(under_way, parts, strict=True):
                wanted = max(part.num_logits, 1)
                decoding.choose(target.forward(part.token_ids, part.start, wanted, parents=part.parents))
            for decoding, _ in under_way:
                decoding.commit()
                decoding.cache.check()
        assert [tuple(decoding.sequence.answer_ids) for decoding, _ in pairs] == alone

    def test_what_is_not_computed_comes_in_pieces_that_give_no_token(self):
        decoding, target = self.start(LONG_PROMPT)
        decoding.begin()
        given = [self.compute(decoding, target, 8) for _ in range(4)]
        assert [step is not None for step in given] == [False, False, False, True]
        assert [(start, len(tokens)) for start, tokens, _ in target.passes] == [(0, 8), (8, 8), (16, 8), (24, 6)]

    @pytest.mark.parametrize("halves", [1, 2, 3])
    def test_a_step_that_is_dropped_has_moved_nothing(self, halves):
        plain = Run(PROMPT, max_tokens=12).result().token_ids
        decoding, target = self.start(PROMPT, drafter=ScriptedDrafter(right(plain)))
        decoding.begin()
        for _ in range(2):
            part = decoding.prepare()
            if halves > 1:
                outputs = target.forward(part.token_ids, part.start, part.num_logits)
            if halves > 2:
                decoding.choose(outputs)
            decoding.drop()
            decoding.cache.check()
            assert (decoding.cache.length, decoding.sequence.answer_ids) == (0, [])
        while not decoding.sequence.is_finished:
            self.compute(decoding, target)
        assert tuple(decoding.sequence.answer_ids) == plain
