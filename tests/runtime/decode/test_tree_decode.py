"""The decode loop with trees: whatever is drafted, tokens, text and cache are those of plain decoding."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings, strategies as st

from edge_rt.errors import InferenceError
from edge_rt.runtime.decode.accept import accept
from edge_rt.runtime.decode.draft import ROOT, Draft
from edge_rt.runtime.forward.cancel import CancelToken
from tests.helpers.examples import share_of
from tests.helpers.fake_model import VOCABULARY, FakeTarget, Run, ScriptedDrafter, fake_cache

PROMPT = [5, 6, 7]
LONG_PROMPT = [(7 * i) % VOCABULARY for i in range(20)]

PLANS = st.lists(
    # A node: which earlier one it follows, whether it is what will come if its parent is, or else which token it is.
    st.tuples(st.integers(-1, 6), st.booleans(), st.integers(0, VOCABULARY - 1)),
    max_size=10,
)
OPTIONS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7, 1.0, 1.6]),
        "top_k": st.sampled_from([0, 0, 5, 20]),
        "top_p": st.sampled_from([1.0, 0.9, 0.5]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.8]),
        "presence_penalty": st.sampled_from([0.0, 0.6, -0.4]),
        "frequency_penalty": st.sampled_from([0.0, 0.5, -0.5]),
        "logit_bias": st.sampled_from([{}, {3: 2.0, 40: -2.0}]),
        "seed": st.integers(0, 99),
        "max_tokens": st.integers(1, 24),
    }
)


def tree(plan, future, limit):
    """Return the tree of a plan, of at most ``limit`` nodes; ``future`` is what plain decoding emits from here on."""
    token_ids, parents, depths = [], [], {ROOT: 0}
    for follows, right, token in plan:
        parent = follows if follows < len(token_ids) else len(token_ids) - 1
        # The depth while every node from the root is right, or None.
        depth = depths[parent]
        if right and depth is not None and depth < len(future):
            token = future[depth]
        if len(token_ids) < limit and (parent, token) not in zip(parents, token_ids, strict=True):
            goes_on = depth is not None and depth < len(future) and token == future[depth]
            depths[len(token_ids)] = depth + 1 if goes_on else None
            token_ids.append(token)
            parents.append(parent)
    return Draft(tuple(token_ids), tuple(parents))


class TreeDrafter(ScriptedDrafter):
    """Proposes trees by plan, one after the other; the plans know the answer in part.

    Attributes:
        drafts: what was proposed.
    """

    def __init__(self, plans, answer):
        self.drafts = []
        self._plans = plans
        self._answer = answer
        super().__init__(self._script)

    def _script(self, so_far, limit):
        plan = self._plans[len(self.drafts) % len(self._plans)]
        draft = tree(plan, self._answer[len(so_far) :], limit)
        draft.check()
        assert len(draft) <= limit
        self.drafts.append(draft)
        return draft

    def observe(self, draft, accepted, outputs):
        super().observe(draft, accepted, outputs)
        assert draft is self.drafts[-1]
        assert [draft.token_ids[node] for node in accepted.path] == list(accepted.token_ids[:-1])
        assert [draft.parents[node] for node in accepted.path[1:]] == list(accepted.path[:-1])


def told(result):
    """Return what a user sees of an answer."""
    return result.token_ids, result.text, result.finish_reason, result.stop_string


def run_both(plans, prompt=PROMPT, **options):
    """Return the results of plain decoding and with trees, which are checked to be the same, and the drafter."""
    longer = {name: value for name, value in options.items() if name != "stop"}
    answer = Run(prompt, **longer).result().token_ids
    plain, drafter = Run(prompt, **options), TreeDrafter(plans, answer)
    trees = Run(prompt, drafter=drafter, **options)
    expected, found = plain.result(), trees.result()
    assert told(found) == told(expected)
    assert found.usage == expected.usage
    assert trees.cache.token_ids == plain.cache.token_ids
    return expected, found, drafter


class TestSameSeedSameText:
    @settings(max_examples=share_of(120))
    @given(plans=st.lists(PLANS, min_size=1, max_size=4), options=OPTIONS)
    def test_any_tree_and_any_options(self, plans, options):
        run_both(plans, LONG_PROMPT, **options)

    @settings(max_examples=share_of(80))
    @given(
        plans=st.lists(PLANS, min_size=1, max_size=4),
        options=OPTIONS,
        start=st.integers(0, 12),
        count=st.integers(1, 3),
    )
    def test_stop_texts(self, plans, options, start, count):
        text = Run(PROMPT, **options).result().text
        stop = text[start : start + count]
        assume(stop)
        expected, _, _ = run_both(plans, stop=(stop, "unseen"), **options)
        assert (expected.finish_reason, expected.stop_string) == ("stop", stop)

    @settings(max_examples=share_of(80))
    @given(plans=st.lists(PLANS, min_size=1, max_size=4), options=OPTIONS, which=st.integers(0, 23))
    def test_end_tokens(self, plans, options, which):
        answer = Run(PROMPT, **options).result().token_ids
        assume(which < len(answer))
        expected, _, _ = run_both(plans, end_ids=(answer[which],), **options)
        assert expected.finish_reason == "stop"

    @settings(max_examples=share_of(60))
    @given(plans=st.lists(PLANS, min_size=1, max_size=4), options=OPTIONS, capacity=st.integers(4, 20))
    def test_full_contexts(self, plans, options, capacity):
        options = options | {"max_tokens": None}
        expected = Run(PROMPT, cache=fake_cache(capacity), **options).result()
        drafter = TreeDrafter(plans, expected.token_ids)
        found = Run(PROMPT, cache=fake_cache(capacity), drafter=drafter, **options).result()
        assert told(found) == told(expected)
        assert found.finish_reason == "context_full"

    def test_trees_save_passes_and_their_branches_are_taken(self):
        """The plans above do what they are for: second and third children stay, over several levels."""
        #        +-- wrong
        # root --+-- wrong -- wrong
        #        +-- right --+-- wrong
        #                    +-- right -- right
        plan = [(-1, False, 1), (-1, False, 2), (1, False, 3), (-1, True, 0), (3, False, 4), (3, True, 0), (5, True, 0)]
        _, _, drafter = run_both([plan], max_tokens=20, temperature=1.0, top_k=0, top_p=0.95, min_p=0.0, seed=1)
        assert [accepted.path for accepted in drafter.seen[:4]] == [(3, 5, 6)] * 4

    @pytest.mark.parametrize("penalty", [{"repetition_penalty": 50.0}, {"presence_penalty": 90.0}])
    def test_drafted_tokens_are_penalised_along_the_path_only(self, penalty):
        # The wrong branches repeat tokens that come later: penalised too soon, they would not come.
        answer = Run(PROMPT, max_tokens=12, **penalty).result().token_ids
        assert len(set(answer)) == 12
        drafter = ScriptedDrafter(
            lambda so_far, limit: (
                Draft((answer[len(so_far) + 1], answer[len(so_far)], answer[len(so_far) + 1]), (ROOT, ROOT, 1))
                if limit >= 3
                else Draft()
            )
        )
        result = Run(PROMPT, drafter=drafter, max_tokens=12, **penalty).result()
        assert result.token_ids == answer
        assert drafter.seen[0].path == (1, 2)


RIGHT_SECOND = [(-1, False, 49), (-1, True, 0), (0, True, 0), (1, False, 48), (1, True, 0), (4, True, 0)]
"""A tree whose path is nodes 1, 4, 5, or shorter."""


class TestEnds:
    @pytest.mark.parametrize("max_tokens", range(1, 10))
    def test_max_tokens_in_the_middle_of_a_path(self, max_tokens):
        expected, _, drafter = run_both([RIGHT_SECOND], max_tokens=max_tokens)
        assert len(expected.token_ids) == max_tokens
        assert all(len(draft) < max_tokens for draft in drafter.drafts)

    @pytest.mark.parametrize("max_tokens", range(1, 7))
    def test_a_tree_larger_than_the_limit_is_cut(self, max_tokens):
        answer = Run(PROMPT, max_tokens=12).result().token_ids
        drafter = ScriptedDrafter(lambda so_far, limit: tree(RIGHT_SECOND, answer[len(so_far) :], 99))
        assert Run(PROMPT, drafter=drafter, max_tokens=max_tokens).result().token_ids == answer[:max_tokens]
        assert drafter.seen[0].num_drafted == max_tokens - 1

    @pytest.mark.parametrize("place", range(6))
    def test_an_end_token_anywhere_on_a_path(self, place):
        answer = Run(PROMPT, max_tokens=12).result().token_ids
        assert len(set(answer[:6])) == 6
        drafter = TreeDrafter([RIGHT_SECOND], answer)
        result = Run(PROMPT, drafter=drafter, max_tokens=12, end_ids=(answer[place],)).result()
        assert (result.token_ids, result.finish_reason) == (answer[: place + 1], "stop")

    def test_an_end_token_on_a_wrong_branch_ends_nothing(self):
        answer = Run(PROMPT, max_tokens=12).result().token_ids
        assert 49 not in answer
        drafter = TreeDrafter([RIGHT_SECOND], answer)
        result = Run(PROMPT, drafter=drafter, max_tokens=12, end_ids=(49,)).result()
        assert (result.token_ids, result.finish_reason) == (answer, "length")

    @pytest.mark.parametrize("start", range(5))
    @pytest.mark.parametrize("length", [1, 2, 3])
    def test_what_was_emitted_behind_a_stop_text_leaves_the_cache(self, start, length):
        plain = Run(PROMPT, max_tokens=16).result()
        stop = plain.text[start : start + length]
        expected = Run(PROMPT, max_tokens=16, stop=(stop,)).result()
        run = Run(PROMPT, drafter=TreeDrafter([RIGHT_SECOND], plain.token_ids), max_tokens=16, stop=(stop,))
        assert told(run.result()) == told(expected)
        assert run.cache.token_ids == (*PROMPT, *expected.token_ids[:-1])


class TestInterruption:
    @settings(max_examples=share_of(60))
    @given(plans=st.lists(PLANS, min_size=1, max_size=4), stop_at=st.integers(0, 12))
    def test_stopped_inside_a_pass_keeps_whole_steps_and_the_next_answer_is_right(self, plans, stop_at):
        options = {"max_tokens": 12, "temperature": 1.0, "seed": 5}
        answer = Run(LONG_PROMPT, **options).result().token_ids
        target = FakeTarget(stop_at=stop_at)
        drafter = TreeDrafter(plans, answer)
        run = Run(LONG_PROMPT, target=target, drafter=drafter, **options)

        result = run.result()

        assert result.token_ids == answer[: len(result.token_ids)]
        whole = sum(len(accepted.token_ids) for accepted in drafter.seen)
        assert len(result.token_ids) == whole
        assert result.finish_reason == ("cancelled" if stop_at < len(target.passes) else "length")
        assert run.cache.length == (len(LONG_PROMPT) + whole - 1 if whole else 0)
        again = Run(LONG_PROMPT, target=target, cache=run.cache, drafter=TreeDrafter(plans, answer), **options)
        target.stop_at = None
        assert again.result().token_ids == answer

    @settings(max_examples=share_of(40))
    @given(plans=st.lists(PLANS, min_size=1, max_size=4), count=st.integers(1, 11))
    def test_cancelled_between_two_steps(self, plans, count):
        answer = Run(PROMPT, max_tokens=12).result().token_ids
        drafter, cancel = TreeDrafter(plans, answer), CancelToken()
        run = Run(PROMPT, drafter=drafter, cancel=cancel, max_tokens=12)

        result = run.result(lambda event: cancel.cancel() if len(run.sequence.answer_ids) >= count else None)

        ends = [0]
        for accepted in drafter.seen:
            ends.append(ends[-1] + len(accepted.token_ids))
        assert len(result.token_ids) == next(end for end in ends if end >= count)
        assert result.token_ids == answer[: len(result.token_ids)]
        assert result.finish_reason == ("length" if len(result.token_ids) == 12 else "cancelled")
        assert run.cache.token_ids == (*PROMPT, *result.token_ids[:-1])

    @pytest.mark.parametrize("fail_at", [3, 4, 5])
    def test_a_failing_pass_leaves_the_cache_whole(self, fail_at):
        answer = Run(LONG_PROMPT, max_tokens=14).result().token_ids
        cache, target = fake_cache(), FakeTarget(fail_at={fail_at: InferenceError("broken")})
        drafter = TreeDrafter([RIGHT_SECOND], answer)
        with pytest.raises(InferenceError, match="broken"):
            Run(LONG_PROMPT, target=target, cache=cache, drafter=drafter, max_tokens=14).result()
        cache.check()
        target.fail_at = {}
        again = Run(LONG_PROMPT, target=target, cache=cache, max_tokens=14).result()
        assert again.token_ids == answer
        assert again.usage.cached_tokens == len(LONG_PROMPT) - 1


class TestReuse:
    @settings(max_examples=share_of(60))
    @given(
        plans=st.lists(PLANS, min_size=1, max_size=4),
        turns=st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4), min_size=2, max_size=4),
        options=OPTIONS,
        taken_back=st.integers(0, 3),
    )
    def test_a_chat_goes_on_where_trees_ended(self, plans, turns, options, taken_back):
        target, cache, prompt = FakeTarget(), fake_cache(), list(PROMPT)
        for index, turn in enumerate(turns):
            prompt = [*prompt, *turn]
            expected = Run(prompt, **options).result()
            held = cache.common_prefix(prompt[:-1])
            drafter = TreeDrafter(plans, expected.token_ids)
            found = Run(prompt, target=target, cache=cache, drafter=drafter, **options).result()
            assert told(found) == told(expected)
            assert found.usage.cached_tokens == held
            assert held >= (len(prompt) - len(turn) - 1 if index else 0)
            # The last tokens of an answer may be edited away.
            prompt += found.token_ids
            prompt = prompt[: max(len(prompt) - taken_back, 1)]

    def test_a_plain_turn_after_trees_reads_their_rows(self):
        first = Run(PROMPT, max_tokens=12)
        answer = first.result().token_ids
        trees = Run(PROMPT, drafter=TreeDrafter([RIGHT_SECOND], answer), max_tokens=12)
        trees.result()
        order = trees.cache._row_map[: trees.cache.length].tolist()
        assert any(before > after for before, after in pairwise(order)), "the tree has changed no rows"
        longer = [*PROMPT, *answer, 1, 2]
        computed = trees.target.computed

        second = Run(longer, target=trees.target, cache=trees.cache, max_tokens=4)

        assert second.result().token_ids == Run(longer, max_tokens=4).result().token_ids
        assert trees.target.computed == computed + 3 + 3


@settings(max_examples=share_of(100))
@given(plan=PLANS, tokens=st.lists(st.integers(0, 5), min_size=11, max_size=11), end=st.integers(0, 5))
def test_tokens_emitted_are_the_chosen_ones_for_as_long_as_they_were_drafted(plan, tokens, end):
    draft = tree([(follows, False, token % 6) for follows, _, token in plan], (), 10)

    class Scripted:
        """Chooses the token that the row tells."""

        def sample(self, row):
            return int(row[0])

        def observe(self, token_id):
            pass

    rows = [[token] for token in tokens[: len(draft) + 1]]
    accepted = accept(draft, rows, Scripted(), {end})
    edges = set(zip(draft.parents, draft.token_ids, strict=True))
    node = ROOT
    for token, following in zip(accepted.token_ids, [*accepted.path, None], strict=True):
        assert token == tokens[node + 1]
        if following is None:
            assert token == end or (node, token) not in edges
        else:
            assert token != end
            assert (draft.parents[following], draft.token_ids[following]) == (node, token)
            node = following
