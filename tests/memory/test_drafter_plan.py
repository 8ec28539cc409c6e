"""A trained drafter in the plan: its terms, and that it is given up before other speculation."""

from __future__ import annotations

import dataclasses

import pytest

from edge_rt.errors import ConfigError
from edge_rt.memory.drafter_shapes import PROMPT_ROWS, DrafterShape, drafter_shape
from edge_rt.memory.plan import make_plan
from edge_rt.memory.request import Request
from edge_rt.memory.shape import DraftModelShape
from edge_rt.memory.speed import DRAFTING_S
from edge_rt.memory.terms import kv_bytes
from tests.helpers.tiny_drafter import for_package
from tests.helpers.tiny_package import MANIFEST, write as write_package
from tests.memory.shapes import DEVICE, MIB, make_shape

HEAD = DrafterShape(
    "small-head", "head", "/drafters/small-head", 3 * MIB, 4096, 1536, 576, 49152, 612, 20 * MIB, (0.6, 0.4, 0.3)
)
SHAPE = make_shape()


def plan(budget=None, **changes):
    return make_plan(
        SHAPE, DEVICE, Request(budget_bytes=budget, **{"ctx": 2048, "kv": "f16", "drafter": HEAD, **changes})
    )


def term(made, name):
    return next((found for found in made.terms if found.name == name), None)


def test_what_a_head_takes():
    rows = 4096 + PROMPT_ROWS
    work = 8 * (2 * 576 + 1536 + rows) + (1 + 7 * 8) * 576
    assert HEAD.head_rows(2048) == rows
    assert HEAD.private_bytes(2048) == rows * 612 + 4 * work + 49152 + MIB // 4
    # A short context has fewer tokens, a tile has 16 rows.
    assert HEAD.head_rows(100) == 4096 + 112
    own = dataclasses.replace(HEAD, row_bytes=0)
    assert HEAD.private_bytes(2048) - own.private_bytes(2048) == rows * 612


def test_its_terms_and_the_hidden_rows_are_in_the_total():
    with_it, without = plan(), plan(drafter=None)
    assert with_it.choice == dataclasses.replace(without.choice, drafter=True)
    mapped, private = term(with_it, "drafter"), term(with_it, "drafter_head")
    assert (mapped.bytes, mapped.kind) == (3 * MIB, "file")
    assert (private.bytes, private.kind) == (HEAD.private_bytes(2048), "private")
    assert private.text == "4096 + 1024 rows of the LM head x 612 B, their logits, states"
    hidden = term(with_it, "logits").bytes - term(without, "logits").bytes
    assert hidden == with_it.choice.logit_rows * 576 * 4
    # The embedding that it reads is mapped for the model.
    assert term(with_it, "weights") == term(without, "weights")
    assert with_it.total_bytes - without.total_bytes == mapped.bytes + private.bytes + hidden
    assert with_it.total_bytes == sum(found.bytes for found in with_it.terms)
    assert term(without, "drafter") is None


def test_it_is_given_up_first():
    whole, without = plan(), plan(drafter=None)
    assert plan(whole.total_bytes).choice == whole.choice
    less = plan(whole.total_bytes - 1)
    assert less.choice == without.choice
    assert less.given_up[0].startswith("drafter: none instead of small-head (saves ")
    assert len(less.given_up) == 1
    assert less.total_bytes == without.total_bytes
    least = plan(without.total_bytes - 1)
    assert not least.choice.drafter
    assert least.choice.suffix_tokens < without.choice.suffix_tokens
    assert [text.partition(":")[0] for text in least.given_up] == ["drafter", "speculation"]


def test_the_smallest_configuration_does_without_it():
    assert plan().minimum_bytes == plan(drafter=None).minimum_bytes


@pytest.mark.parametrize("changes", [{"spec": "head"}, {"drafter_folder": "/drafters/small-head"}])
def test_one_that_was_asked_for_is_kept(changes):
    budget = plan(**changes).minimum_bytes
    assert plan(budget, **changes).choice.drafter
    refused = plan(budget - 1, **changes)
    assert not refused.fits
    assert refused.alternatives
    for other in refused.alternatives:
        assert other.total_bytes <= budget or "--memory" in other.flags


def with_positions(*positions):
    return dataclasses.replace(HEAD, positions=positions)


def test_a_head_is_as_fast_as_its_best_chain():
    made = plan(spec="head")
    plain = 1 / made.plain_tokens_per_second
    guess = (3 * MIB + (4096 + PROMPT_ROWS) * 612) / DEVICE.bandwidth
    # DEVICE: every row more up to the eighth costs 0.5 / 7 of a pass.
    cost = [plain * (1 + 0.5 / 7 * guesses) + guesses * guess + DRAFTING_S for guesses in (1, 2, 3)]
    tokens = (1 + 0.6, 1 + 0.6 + 0.6 * 0.4, 1 + 0.6 + 0.6 * 0.4 + 0.6 * 0.4 * 0.3)
    speeds = [emitted / seconds for emitted, seconds in zip(tokens, cost, strict=True)]
    assert speeds.index(max(speeds)) == 1
    assert made.tokens_per_second == pytest.approx(max(speeds))
    assert plan(spec="head", draft_max=1).tokens_per_second == pytest.approx(speeds[0])
    assert plan(spec="head", drafter=with_positions(0.0, 0.9)).tokens_per_second == made.plain_tokens_per_second


def test_a_guess_costs_what_it_reads_on_the_cpu():
    slow = dataclasses.replace(HEAD, weights_bytes=2 << 30)
    assert plan(spec="head", drafter=slow).tokens_per_second == plan(spec="off", drafter=None).tokens_per_second


def test_with_auto_the_better_one_of_texts_and_head_is_expected():
    texts = plan(drafter=None).tokens_per_second
    assert plan(spec="head").tokens_per_second < texts
    assert plan().tokens_per_second == texts
    good = with_positions(0.95, 0.95, 0.95, 0.95)
    assert plan(drafter=good).tokens_per_second == plan(drafter=good, spec="head").tokens_per_second > texts
    # Without the memory for it there are texts alone, and that is said.
    less = plan(plan(drafter=good).total_bytes - 1, drafter=good)
    assert less.tokens_per_second == texts
    assert less.given_up[0].endswith(" % tokens per second)")


def test_adapters_of_exits_gain_nothing_that_is_known():
    adapters = dataclasses.replace(with_positions(0.99), kind="exit")
    assert plan(drafter=adapters).tokens_per_second == plan(drafter=None).tokens_per_second


@pytest.mark.parametrize("spec", [None, "auto", "head"])
def test_how_good_a_head_is_decides_nothing(spec):
    good, bad = with_positions(*[0.95] * 8), with_positions(0.0)
    for budget in (None, *(count * MIB for count in range(220, 320, 5))):
        found = [plan(budget, spec=spec, drafter=head) for head in (good, bad)]
        assert found[0].choice == found[1].choice
        assert (found[0].fits, found[0].minimum) == (found[1].fits, found[1].minimum)
        assert [other.choice for other in found[0].alternatives] == [other.choice for other in found[1].alternatives]


def test_a_head_alone_has_no_tables():
    made = plan(spec="head")
    assert (made.choice.suffix_tokens, made.choice.recycling_contexts, made.choice.drafter) == (0, 0, True)
    assert term(made, "drafters").bytes < MIB


@pytest.mark.parametrize("spec", ["off", "suffix", "recycling"])
def test_other_modes_do_without_it(spec):
    made = plan(spec=spec)
    assert not made.choice.drafter
    assert made.total_bytes == plan(spec=spec, drafter=None).total_bytes


def test_flags_of_a_named_one():
    assert Request(drafter=HEAD, drafter_folder="d").flags == ("--drafter", "d")
    assert Request(drafter=HEAD).flags == ()
    assert Request(spec="off", drafter_folder="none").flags == ("--spec", "off")


def test_a_mode_without_its_drafter_is_refused():
    with pytest.raises(ConfigError, match="needs a network that drafts, and the plan has none"):
        plan(spec="head", drafter=None)


def test_numbers_of_a_drafter(tmp_path):
    native = dataclasses.replace(MANIFEST, op_profile="native", kv_formats=("f16",))
    package = write_package(tmp_path / "tiny", manifest=native)
    drafter = for_package(tmp_path / "head", package.manifest)
    shape = drafter_shape(drafter, package.manifest)
    # A tied head is the embedding: Q8_0, 64 inputs, in whole tiles.
    assert shape == DrafterShape(
        "tiny-head",
        "head",
        str(drafter.path),
        drafter.weights_bytes,
        20,
        32,
        64,
        419,
        64 * 17 // 16,
        432 * 68,
        (0.5, 0.25),
    )


class TestSecondModel:
    SECOND = DraftModelShape(make_shape(num_layers=2, weights_bytes=30 * MIB, context_length=1024), "/second", 49152)

    def test_its_terms_are_in_the_total(self):
        made, off = plan(drafter=None, draft_model=self.SECOND, spec="model:/second"), plan(drafter=None, spec="off")
        assert made.choice.drafter
        weights = term(made, "draft_weights")
        assert (weights.bytes, weights.kind) == (30 * MIB, "file")
        own = self.SECOND.choice(made.choice)
        assert (own.ctx, own.kv_format, own.logit_rows, own.draft_max) == (1024, "f16", 1, 0)
        assert term(made, "draft_model").bytes > kv_bytes(self.SECOND.shape, own)
        assert made.total_bytes == sum(found.bytes for found in made.terms)
        assert made.total_bytes - off.total_bytes > 30 * MIB
        # Its passes return hidden states to nobody.
        assert term(made, "logits").text == f"{made.choice.logit_rows} rows x 49152 x 4 B"

    def test_it_is_not_given_up_where_it_was_named(self):
        named = {"drafter": None, "draft_model": self.SECOND, "drafter_folder": "/second", "spec": "auto"}
        whole = plan(**named)
        assert whole.choice.drafter
        assert not plan(whole.minimum_bytes - 1, **named).fits
        assert plan(whole.minimum_bytes, **named).choice.drafter

    def test_a_plan_without_the_package_is_refused(self):
        with pytest.raises(ConfigError, match="needs a network that drafts"):
            plan(drafter=None, spec="model:/second")

    def test_a_format_that_it_does_not_have(self):
        only = dataclasses.replace(self.SECOND.shape, kv_formats=("f32",))
        assert DraftModelShape(only, "/second", 1).choice(plan().choice).kv_format == "f32"
