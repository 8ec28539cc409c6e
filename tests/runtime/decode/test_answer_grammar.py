"""Trees, thoughts and forced tokens under a grammar that is a list of texts, one letter a token."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import InvalidGrammar
from edge_rt.runtime.decode.answer_grammar import AnswerGrammar, Opening
from edge_rt.runtime.decode.draft import ROOT, Draft
from edge_rt.runtime.forward.outputs import Outputs, TopTokens

LETTERS = "abcdefghijklmnopqrstuvwxyz<>/ $"
END = LETTERS.index("$")


def ids(text):
    return [LETTERS.index(letter) for letter in text]


def spelled(token_ids):
    return "".join(LETTERS[token] for token in token_ids)


class Texts:
    """Lets these texts through."""

    def __init__(self, *texts):
        self._texts, self._taken = texts, []

    depth = property(lambda self: len(self._taken))

    def _rest(self):
        begun = spelled(self._taken)
        return [text[len(begun) :] for text in self._texts if text.startswith(begun)]

    may_end = property(lambda self: "" in self._rest())
    must_end = property(lambda self: self._rest() == [""])

    def allows(self, token_id):
        return any(rest[:1] == LETTERS[token_id] for rest in self._rest())

    def mask(self):
        flags = [self.allows(token) for token in range(len(LETTERS))]
        flags[END] = self.may_end
        return np.packbits([*flags, *[False] * (-len(flags) % 32)], bitorder="little").view(np.uint32)

    def take(self, token_ids):
        for token in token_ids:
            assert self.allows(token), (spelled(self._taken), LETTERS[token])
            self._taken.append(token)

    def take_back(self, depth):
        del self._taken[depth:]

    def forced(self, most):
        rest = self._rest()
        shared = 0
        while all(len(text) > shared and text[shared] == rest[0][shared] for text in rest):
            shared += 1
        return ids(rest[0][: min(shared, most)])

    def check(self):
        pass


class Wishes:
    """Chooses, row by row, the first wish that is allowed; counts what it is asked and told."""

    takes_best = False

    def __init__(self):
        self.draws, self.observed = 0, ""

    def sample(self, logits, mask=None):
        self.draws += 1
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(logits)].astype(bool)
        return int(np.where(allowed, logits, -np.inf).argmax())

    def observe(self, token_id):
        self.observed += LETTERS[token_id]


class Best(Wishes):
    takes_best = True


def outputs(*wishes, top=4):
    """Return rows of logits; in each the letters of a text come first, in this order."""
    logits = np.zeros((len(wishes), len(LETTERS)), np.float32)
    for row, text in enumerate(wishes):
        logits[row, ids(text)] = np.arange(len(text), 0, -1)
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :top].astype(np.int32)
    return Outputs(logits, TopTokens(order, np.take_along_axis(logits, order, -1), np.zeros(len(wishes), np.float32)))


def grammar(*texts, opening=None):
    return AnswerGrammar(Texts(*texts), (END,), len(LETTERS), opening)


def test_what_is_forced_is_emitted_without_asking():
    one, sampler = grammar("hello", "help"), Wishes()
    assert spelled(one.begin(sampler, 99)) == "hel"
    accepted = one.accept(Draft(), outputs("xp"), sampler, 99)
    assert (spelled(accepted.token_ids), accepted.path) == ("p$", ())
    assert (one.is_whole, one.num_forced, sampler.draws, sampler.observed) == (True, 4, 1, "help$")


def test_an_answer_without_a_choice_needs_no_model():
    one = grammar("yes")
    assert spelled(one.begin(Wishes(), 99)) == "yes$"
    assert one.is_whole


@pytest.mark.parametrize(("room", "text", "is_whole"), [(2, "ye", False), (3, "yes", True), (4, "yes$", True)])
def test_a_whole_answer_is_whole_without_room_for_its_end(room, text, is_whole):
    one = grammar("yes")
    assert (spelled(one.begin(Wishes(), room)), one.is_whole) == (text, is_whole)


@pytest.mark.parametrize("sampler", [Wishes(), Best()])
def test_the_most_likely_token_that_is_allowed_is_chosen(sampler):
    assert spelled(grammar("ab", "cd", "ef").accept(Draft(), outputs("zxe"), sampler, 99).token_ids) == "ef$"
    assert spelled(grammar("ab", "cd").accept(Draft(), outputs("zxyw", top=2), sampler, 99).token_ids) == "ab$"


def test_no_number_is_drawn_where_one_token_alone_may_follow():
    class Slow(Texts):
        def forced(self, most):
            return []

    one, sampler = AnswerGrammar(Slow("ab"), (END,), len(LETTERS)), Wishes()
    one.accept(Draft(), outputs("z"), sampler, 99)
    assert (sampler.draws, sampler.observed) == (0, "a")


def test_forbidden_nodes_leave_the_draft_with_what_is_behind_them():
    #         a0 -> b1 -> x2     a0 -> c3 -> d4      z5 -> a6
    draft = Draft(tuple(ids("abxcdza")), (ROOT, 0, 1, 0, 3, ROOT, 5))
    one = grammar("abe", "abf", "acd", "acg", "q")
    pruned = one.pruned(draft)
    pruned.check()
    assert (spelled(pruned.token_ids), pruned.parents) == ("abcd", (ROOT, 0, 0, 2))
    assert one.pruned(pruned) is pruned


def test_other_nodes_than_forced_ones_leave_the_draft_too():
    draft = Draft.chain(ids("abcd$"))
    assert spelled(grammar("abcd", "q").pruned(draft).token_ids) == "abcd$"
    assert spelled(grammar("abcd", "abce", "q").pruned(draft).token_ids) == "abcd$"
    assert spelled(grammar("abx", "q").pruned(draft).token_ids) == "ab"


def test_acceptance_goes_down_the_tree_through_forced_nodes_and_on():
    draft = Draft(tuple(ids("abcxe")), (ROOT, 0, 1, 0, 2))
    one, sampler = grammar("abce", "abcf", "q", "z"), Wishes()
    accepted = one.accept(one.pruned(draft), outputs("a", "", "", "f", ""), sampler, 99)
    assert (spelled(accepted.token_ids), accepted.path) == ("abcf$", (0, 1, 2))
    assert spelled(accepted.forced) == "$"


def test_drafts_and_rooms_change_nothing_of_the_text():
    texts = ("abcd", "abef", "abe", "xyz", "xq")
    wishes = {"": "a", "ab": "e", "abe": "f"}
    plain = ""
    one = grammar(*texts)
    while not one.is_whole:
        plain += spelled(one.accept(Draft(), outputs(wishes[plain]), Wishes(), 99).token_ids)
    for nodes in ("a", "abe", "abef$", "abcd", "xy"):
        one, text = grammar(*texts), ""
        draft = one.pruned(Draft.chain(ids(nodes)))
        rows = [wishes.get(nodes[:count], "") for count in range(len(draft) + 1)]
        text += spelled(one.accept(draft, outputs(*rows), Wishes(), 99).token_ids)
        while not one.is_whole:
            text += spelled(one.accept(Draft(), outputs(wishes[text]), Wishes(), 99).token_ids)
        assert text == plain == "abef$"


@pytest.mark.parametrize("room", range(1, 6))
def test_no_more_tokens_are_emitted_than_there_is_room_for(room):
    draft = Draft.chain(ids("abcde"))
    accepted = grammar("abcde", "q").accept(draft, outputs(*"abcde", "$"), Wishes(), room)
    assert len(accepted.token_ids) == room
    assert len(accepted.path) == room - 1


def test_a_grammar_that_no_token_can_continue_is_an_error():
    with pytest.raises(InvalidGrammar, match="No token"):
        grammar("A").accept(Draft(), outputs("a"), Wishes(), 99)


def thinking(*, is_open):
    return Opening(
        tuple(ids("<t>")), (), b"</t>", lambda token: LETTERS[token].encode(), in_thoughts=is_open
    )  # fmt: skip


def run(one, wish, sampler):
    text = ""
    while not one.is_whole and len(text) < 40:
        text += spelled(one.accept(Draft(), outputs(wish(text)), sampler, 99).token_ids)
    return text


def test_the_grammar_begins_behind_thoughts_and_thoughts_do_not_end_the_answer():
    one, wanted = grammar("yes", "no", opening=thinking(is_open=True)), "hm </t>"
    text = run(one, lambda text: "$" + wanted[len(text) : len(text) + 1] if len(text) < len(wanted) else "n", Wishes())
    assert text == "hm </t>no$"


def test_white_space_in_the_token_that_ends_the_thoughts_is_none_of_the_answers():
    texts = {END - 1: "> ", END - 3: ">"}
    opening = Opening((), (), b"</t>", lambda token: texts.get(token, LETTERS[token]).encode(), in_thoughts=True)
    one = grammar("yes", "no", opening=opening)
    for letter in "</t":
        one.accept(Draft(), outputs(letter), Wishes(), 1)
    # The token "> " is wished for most.
    assert spelled(one.accept(Draft(), outputs(" >"), Wishes(), 1).token_ids) == ">"


def test_a_model_may_begin_to_think_or_answer_at_once():
    assert run(grammar("yes", "no", opening=thinking(is_open=False)), lambda _: "y", Wishes()) == "yes$"
    wanted = "<t>q</t>"
    one = grammar("yes", "no", opening=thinking(is_open=False))
    assert run(one, lambda text: wanted[len(text) : len(text) + 1] or "y", Wishes()) == "<t>q</t>yes$"


def channels():
    """A marker that has its first tokens from the answers."""
    return Opening(tuple(ids("<c>t")), (), b"</t>", lambda token: LETTERS[token].encode())


def test_an_answer_may_begin_as_thoughts_do():
    for wanted, expected in (("<c>yes", "<c>yes$"), ("<c>tq</t>", "<c>tq</t><c>no$")):
        one = grammar("<c>yes", "<c>no", opening=channels())
        assert run(one, lambda text, wanted=wanted: wanted[len(text) : len(text) + 1] or "n", Wishes()) == expected


def test_a_draft_may_do_both():
    """One branch thinks, which takes what was written of the answer back; the other one goes on with it."""
    one = grammar("<c>yes", "<c>no", opening=channels())
    draft = Draft(tuple(ids("<c>t</t><c>nyes")), (ROOT, 0, 1, *range(2, 11), 2, 12, 13))
    pruned = one.pruned(draft)
    assert spelled(pruned.token_ids) == "<c>t</t><c>nyes"
    accepted = one.accept(pruned, outputs(*"<c>y", *[""] * 12), Wishes(), 99)
    assert spelled(accepted.token_ids) == "<c>yes$"


def test_the_grammar_begins_in_the_middle_of_a_draft():
    one = grammar("yes", "no", opening=thinking(is_open=True))
    draft = Draft(tuple(ids("a</t>ynes")), (ROOT, 0, 1, 2, 3, 4, 4, 5, 7))
    pruned = one.pruned(Draft(draft.token_ids + tuple(ids("x")), (*draft.parents, 4)))
    assert spelled(pruned.token_ids) == "a</t>ynes"
    accepted = one.accept(pruned, outputs(*"a</t>", "y", "", "", "", ""), Wishes(), 99)
    assert spelled(accepted.token_ids) == "a</t>yes$"


def test_a_forced_run_is_not_followed_beyond_the_room():
    matcher = Texts("a" * 1000)
    one = AnswerGrammar(matcher, (END,), len(LETTERS))
    assert spelled(one.begin(Wishes(), 3)) == "aaa"
    assert (one.is_whole, one.num_forced, matcher.depth) == (False, 3, 0)
    branch = AnswerGrammar(Texts("b" + "a" * 1000, "c"), (END,), len(LETTERS))
    assert spelled(branch.pruned(Draft.chain(ids("baaa"))).token_ids) == "baaa"
    assert spelled(branch.accept(Draft.chain(ids("ba")), outputs("b", "", ""), Wishes(), 3).token_ids) == "baa"
