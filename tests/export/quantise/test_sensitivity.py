"""What types cost, who wins, and how a budget is shared out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import ConfigError
from edge_rt.export.quantise.decision import Rivals, WeightChoice
from edge_rt.export.quantise.feedback import importance, quantise
from edge_rt.export.quantise.grids import Grid
from edge_rt.export.quantise.sensitivity import Cost, costs, measured_choice, share_out, winners
from edge_rt.export.weights.native import tile_bytes
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.system.byte_size import show_at_least
from tests.helpers.arrays import Arrays
from tests.helpers.examples import share_of
from tests.helpers.ggml_blocks import tensor_of

LADDER = ("IQ4_NL", "Q5_0", "Q5_1", "Q8_0")


def ladder(sizes, losses):
    return tuple(Cost(name, size, loss) for name, size, loss in zip(LADDER, sizes, losses, strict=False))


COSTS = st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 100)), min_size=1, max_size=4).map(
    lambda pairs: ladder([size for size, _ in pairs], [loss for _, loss in pairs])
)
MEASURED = st.lists(COSTS, min_size=1, max_size=8).map(lambda many: {f"m{i}": found for i, found in enumerate(many)})


def total(measured, chosen):
    """Return bytes and loss of a choice."""
    found = [next(cost for cost in measured[name] if cost.type_name == type_name) for name, type_name in chosen.items()]
    return sum(cost.nbytes for cost in found), sum(cost.loss for cost in found)


def least(measured):
    return sum(min(cost.nbytes for cost in found) for found in measured.values())


@settings(max_examples=share_of(200))
@given(MEASURED, st.integers(0, 4000))
def test_a_budget_is_never_exceeded(measured, more):
    chosen = share_out(measured, least(measured) + more)
    assert chosen.keys() == measured.keys()
    assert total(measured, chosen)[0] <= least(measured) + more


@settings(max_examples=share_of(100))
@given(MEASURED, st.integers(1, 5000))
def test_less_than_the_least_is_refused(measured, missing):
    told = rf"at least {show_at_least(least(measured))};.*is larger by {show_at_least(missing)} or more"
    with pytest.raises(ConfigError, match=told) as caught:
        share_out(measured, least(measured) - missing)
    assert caught.value.what == "The model does not fit the size."


@settings(max_examples=share_of(100))
@given(MEASURED)
def test_with_room_for_all_everything_is_at_its_best(measured):
    chosen = share_out(measured, sum(max(cost.nbytes for cost in found) for found in measured.values()))
    start = {name: min(found, key=lambda cost: cost.nbytes) for name, found in measured.items()}
    for name, type_name in chosen.items():
        loss = next(cost.loss for cost in measured[name] if cost.type_name == type_name)
        assert loss <= start[name].loss
        # What is larger would lose no less.
        size = next(cost.nbytes for cost in measured[name] if cost.type_name == type_name)
        assert all(cost.loss >= loss for cost in measured[name] if cost.nbytes > size)


def real_ladders(count=6, seed=0):
    """Return ladders as matrices of several sizes and sensitivities have."""
    rng = np.random.default_rng(seed)
    found = {}
    for number in range(count):
        size, loss = int(rng.integers(100, 2000)), float(np.exp(rng.standard_normal() * 2))
        found[f"m{number}"] = ladder(
            [size * bits for bits in (4, 5, 6, 8)], [loss * 4.0**-bits for bits in (0, 1, 2, 4)]
        )
    return found


@pytest.mark.parametrize("seed", range(5))
def test_more_bytes_lose_no_more(seed):
    """On ladders whose steps gain less and less for their bytes, as those of types do."""
    measured = real_ladders(seed=seed)
    begin, end = least(measured), 2 * least(measured)
    losses = [total(measured, share_out(measured, budget))[1] for budget in range(begin, end, (end - begin) // 60)]
    assert all(later <= earlier * 1.02 for earlier, later in itertools.pairwise(losses))
    assert losses[-1] < 0.1 * losses[0]


def test_it_is_near_the_best_there_is():
    measured = real_ladders(4)
    budget = int(1.4 * least(measured))
    best = min(
        loss
        for types in itertools.product(LADDER, repeat=4)
        for size, loss in [total(measured, dict(zip(measured, types, strict=True)))]
        if size <= budget
    )
    assert total(measured, share_out(measured, budget))[1] <= 1.5 * best


class TestCosts:
    INPUTS, ROWS = 64, 80
    WEIGHTS = (np.random.default_rng(0).standard_normal((ROWS, INPUTS)) * 0.05).astype(np.float32)
    TENSOR = tensor_of("F32", ROWS, INPUTS)

    def found(self, influence=None, types=LADDER, rows=ROWS):
        tensor = tensor_of("F32", rows, self.INPUTS)
        return costs(tensor, types, Arrays({"m": self.WEIGHTS[:rows]}), influence)

    def test_bytes_are_those_of_the_package(self):
        assert [cost.nbytes for cost in self.found()] == [tile_bytes(self.TENSOR, name) for name in LADDER]
        assert [cost.type_name for cost in self.found()] == list(LADDER)

    def test_finer_types_lose_less(self):
        losses = [cost.loss for cost in self.found(np.random.default_rng(1).random(self.INPUTS) + 0.1)]
        assert losses == sorted(losses, reverse=True)

    def test_losses_are_proportional_to_the_influence(self):
        influence = np.random.default_rng(1).random(self.INPUTS) + 0.1
        once, thrice = self.found(influence), self.found(3 * influence)
        for a, b in zip(once, thrice, strict=True):
            assert b.loss == pytest.approx(3 * a.loss, rel=1e-3)

    def test_half_the_squared_errors_times_what_they_meet(self):
        influence = (np.random.default_rng(1).random(self.INPUTS) + 0.1).astype(np.float32)
        for cost in self.found(influence, rows=32):
            _, errors = quantise(self.WEIGHTS[:32], importance(influence), (), Grid(tile_format(cost.type_name)))
            assert cost.loss == pytest.approx(0.5 * float((np.square(errors) @ influence).sum()), rel=1e-4)

    def test_a_sample_stands_for_all_rows(self):
        few, many = self.found(rows=20)[0], self.found(rows=80)[0]
        assert many.loss == pytest.approx(4 * few.loss, rel=0.25)

    def test_without_influence_all_inputs_count_alike(self):
        ones = self.found(np.ones(self.INPUTS))
        assert [cost.loss for cost in self.found()] == pytest.approx([cost.loss for cost in ones])

    @pytest.mark.parametrize("influence", [np.zeros(64), np.full(64, 1e-38)])
    def test_a_matrix_that_nothing_depends_on(self, influence):
        assert all(0 <= cost.loss < 1e-30 for cost in self.found(influence))


def test_winners_are_those_that_gain_most():
    choice = WeightChoice("int4", {}, (Rivals(("a", "b", "c"), "IQ4_NL", "Q5_1"), Rivals(("d", "e"), "Q4_0", "Q8_0")))
    gains = {"a": (9.0, 8.0), "b": (5.0, 1.0), "c": (3.0, 0.0), "d": (1.0, 0.9), "e": (1.0, 0.1)}
    measured = {name: (Cost("x", 1, usual), Cost("y", 2, better)) for name, (usual, better) in gains.items()}
    assert dict(winners(choice, measured).types) == {
        "a": "IQ4_NL", "b": "Q5_1", "c": "IQ4_NL", "d": "Q4_0", "e": "Q8_0",
    }  # fmt: skip


def test_measuring_rivals_and_ladders():
    rng = np.random.default_rng(3)
    arrays = {name: (rng.standard_normal((32, 64)) * 0.05).astype(np.float32) for name in ("a", "b")}
    tensors = {name: tensor_of("F32", 32, 64, name) for name in arrays}
    influences = {"a": np.full(64, 1.0), "b": np.full(64, 50.0)}
    steps = []

    def measured(choice, budget=0, influences=influences):
        steps.clear()
        return measured_choice(choice, tensors, Arrays(arrays), influences, budget, lambda *at: steps.append(at))

    rivals = WeightChoice("int4", {}, (Rivals(("a", "b"), "IQ4_NL", "Q5_1"),))
    assert dict(measured(rivals).types) == {"a": "IQ4_NL", "b": "Q5_1"}
    assert steps == [(0, 2), (1, 2)]
    swapped = {"a": influences["b"], "b": influences["a"]}
    assert dict(measured(rivals, influences=swapped).types) == {"a": "Q5_1", "b": "IQ4_NL"}
    ladders = WeightChoice("size", {}, ladders={"a": LADDER, "b": LADDER}, size=1)
    small, large = (tile_bytes(tensors["a"], name) for name in ("IQ4_NL", "Q8_0"))
    assert dict(measured(ladders, small + large).types) == {"a": "IQ4_NL", "b": "Q8_0"}
    assert dict(measured(ladders, 2 * small).types) == {"a": "IQ4_NL", "b": "IQ4_NL"}
    assert dict(measured(ladders, 2 * large).types) == {"a": "Q8_0", "b": "Q8_0"}
    with pytest.raises(ConfigError, match="does not fit the size"):
        measured(ladders, 2 * small - 1)
