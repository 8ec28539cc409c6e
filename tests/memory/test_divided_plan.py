"""Plans that divide a model's layers between the CPU and a GPU whose memory is too small for all of them."""

from __future__ import annotations

import io
from dataclasses import replace
from mmap import PAGESIZE

import pytest
from hypothesis import assume, given, settings, strategies as st

from edge_rt.cli.loading import tell_plan
from edge_rt.cli.render.console import Terminal
from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.export.families.rope import default_rope
from edge_rt.memory.advice import require_fit
from edge_rt.memory.figures import Amounts, Choice
from edge_rt.memory.plan import make_plan
from edge_rt.memory.request import Request
from edge_rt.memory.sizes import sizes_of
from edge_rt.memory.speed import pass_seconds
from edge_rt.package.decoder import Rope
from edge_rt.package.layer_sizes import LayerSizes
from edge_rt.package.layers import Experts, Layer
from tests.helpers.examples import share_of
from tests.memory.shapes import DEVICE, MIB, make_shape, request_of, requests, shapes
from tests.memory.test_gpu_plan import OWN, SHARED

HEAD, LAYER, ROPE = 28_000_000, 2_290_000, 2 * 8192 * 32 * 4
TENSORS = 10  # of a layer
ROOM = 610 * MIB


def layered(shape, head=HEAD, layer=LAYER, rope=ROPE):
    """Return a shape whose layers have equal weights; head and rotations are read on both sides."""
    count = shape.model.num_layers
    return replace(
        shape,
        layers=LayerSizes(
            before=(head, *(head + rope + layer * (i + 1) for i in range(count))),
            behind=(*(head + rope + layer * (count - i) for i in range(count)), 0),
            rotations_before=(0, *[rope] * count),
            tensors_before=tuple(TENSORS * (i + 1) for i in range(count + 1)),
        ),
    )


def device_of(own):
    return replace(OWN, gpu=replace(OWN.gpu, available_bytes=own))


def test_every_part_is_counted_where_it_lies():
    """By hand: 10 of 30 layers on the GPU, with a context of 2048 and passes of up to 256 rows."""
    shape, choice = layered(make_shape()), Choice(2048, "f16", "auto", 23, 256, 8192, 8192, 24, gpu_layers=10)
    found, (on_cpu, whole) = (
        sizes_of(shape, OWN, choice, Request()),
        (sizes_of(shape, device, replace(choice, gpu_layers=None), Request()) for device in (DEVICE, OWN)),
    )
    assert found.gpu.weights == HEAD + ROPE + 10 * LAYER
    # Rotations of 2 MiB may all be mapped around the rows that are needed; for each tensor a page is mapped twice.
    assert found.weights == HEAD + 20 * LAYER + ROPE + 21 * TENSORS * PAGESIZE
    # rows x layers x (keys and values of 3 heads x 64 x 2 bytes)
    assert (found.kv_cache, found.gpu.kv_cache) == (2048 * 20 * 768, 10 * (2 << 20))
    assert found.gpu.activations == whole.gpu.activations
    assert found.chunk == 2 * on_cpu.chunk
    assert (found.logits, found.gpu.logits, found.gpu.context) == (whole.logits, whole.gpu.logits, whole.gpu.context)
    # What a load maps and copies for a moment, and the driver.
    assert found.packing == whole.packing + 2 * (HEAD + ROPE)
    assert found.runtime == on_cpu.runtime + 128 * MIB


@pytest.mark.parametrize(("largest", "rope", "copied"), [(HEAD, ROPE, HEAD), (LAYER, 20 * MIB, 10 * MIB)])
def test_a_load_has_the_largest_tensor_that_both_sides_read_twice(largest, rope, copied):
    shape = replace(layered(make_shape(), rope=rope), largest_tensor_bytes=largest)
    choice = Choice(2048, "f16", "off", 0, 256, 0, 0, 1, gpu_layers=10)
    divided, whole = (sizes_of(shape, OWN, replace(choice, gpu_layers=n), Request()) for n in (10, None))
    assert divided.packing - whole.packing == 2 * copied


def test_rotations_that_are_computed_at_load_are_copied_in_every_pass():
    shape = layered(make_shape(), rope=0)
    dims = shape.model
    rope = Rope("longrope", 1e4, (1.0,) * 32, long_frequencies=(0.5,) * 32, short_context=64)
    loading = dims.decoder("llama", Layer(dims.attention(), dims.feed_forward()), rope)
    assert replace(shape, model=loading).loaded_rope_bytes == 2 * 32 * 4
    choice = Choice(2048, "f16", "off", 0, 256, 0, 0, 1, gpu_layers=10)
    none, some = (sizes_of(replace(shape, model=model), OWN, choice, Request()).gpu for model in (dims, loading))
    # A 16th more than 2,048 positions of 256 bytes.
    assert some.activations - none.activations == pytest.approx(2048 * 256 * 17 / 16, abs=256)
    assert some.weights == none.weights


def test_layers_are_divided_only_where_nothing_else_fits():
    shape = layered(make_shape())
    least = make_plan(shape, OWN, Request()).minimum.gpu
    for room, divides in ((least, False), (least - 1, True)):
        plan, before = (make_plan(one, OWN, Request(device_budget_bytes=room)) for one in (shape, make_shape()))
        assert plan.fits
        assert (plan.choice.gpu_layers is not None) == divides
        assert before.fits != divides
        if not divides:
            assert plan.choice == before.choice


def test_settings_are_kept_and_as_many_layers_as_fit_are_there():
    shape = layered(make_shape())
    plan = make_plan(shape, OWN, Request(device_budget_bytes=ROOM))
    assert plan.fits
    assert (plan.choice.ctx, plan.choice.kv_format, plan.choice.draft_max) == (8192, "f16", 23)
    there = plan.choice.gpu_layers
    needs = [
        sizes_of(shape, OWN, replace(plan.choice, gpu_layers=n), plan.request).needs.gpu for n in (there, there + 1)
    ]
    assert needs[0] <= ROOM < needs[1]
    assert plan.given_up[0].startswith(f"layers on the GPU: {there} of 30, the others on the CPU (saves ")
    assert len(plan.given_up) == 1
    # Where the process is short, it gives up what it would without a GPU.
    tight = make_plan(shape, OWN, Request(device_budget_bytes=ROOM, budget_bytes=plan.needs.host - 50 * MIB))
    assert tight.fits
    assert tight.choice.gpu_layers >= there
    assert any(text.startswith("precision of the KV cache") for text in tight.given_up)


def test_what_is_never_divided():
    shape, asked = layered(make_shape()), Request(device_budget_bytes=ROOM - 40 * MIB)
    assert make_plan(shape, OWN, asked).choice.gpu_layers is not None
    for changes, why in (
        ({}, "because its graph does not tell them apart"),
        ({"package_id": None}, "once it is exported"),
    ):
        with pytest.raises(MemoryBudgetExceeded, match=f"memory of the GPU.*Its layers .*{why}"):
            require_fit(make_plan(make_shape(**changes), OWN, asked))
    # One memory is not enough for the model, wherever it computes; nor are layers that are not there.
    assert make_plan(shape, SHARED, Request(budget_bytes=ROOM - 40 * MIB)).choice.gpu_layers is None
    single = layered(make_shape(num_layers=1))
    assert not make_plan(single, OWN, asked).fits
    # With too little memory for the others.
    less = replace(asked, budget_bytes=200 * MIB)
    plan = make_plan(shape, OWN, less)
    assert not plan.fits
    assert plan == replace(make_plan(make_shape(), OWN, less), shape=shape)


def test_a_refusal_names_what_a_single_layer_needs():
    shape = layered(make_shape())
    plan = make_plan(shape, OWN, Request(device_budget_bytes=520 * MIB))
    assert (plan.fits, plan.choice.gpu_layers) == (False, 1)
    assert plan.minimum == plan.needs
    for room, fits in ((plan.minimum.gpu, True), (plan.minimum.gpu - 1, False)):
        assert make_plan(shape, OWN, Request(device_budget_bytes=room)).fits == fits
    with pytest.raises(MemoryBudgetExceeded) as refused:
        require_fit(plan)
    assert "the budget is 520.0 MiB" in refused.value.numbers
    assert [(other.flags[:2], other.choice.gpu_layers) for other in plan.alternatives[:1]] == [
        (("--device-memory", f"{-(-plan.minimum.gpu // MIB)}MiB"), 1)
    ]
    for other in plan.alternatives:
        assert make_plan(shape, OWN, request_of(other.flags, plan.request)).fits


def sharing(own, count):
    """Return a shape of which the layers behind some read the keys and values of the last one of these."""
    dims = make_shape(num_layers=count).model
    layers = (
        Layer(dims.attention(kv_from=own - 1 if number >= own else None), dims.feed_forward())
        for number in range(count)
    )
    model = dims.decoder("llama", tuple(layers), default_rope(1e4, dims.head_dim))
    return layered(replace(make_shape(num_layers=count), model=model))


def test_layers_stay_with_those_whose_keys_they_read():
    shape = sharing(12, 30)
    assert shape.gpu_layer_counts == tuple(range(19, 30))
    settings = {"kv": "f16", "ctx": 8192, "spec": "off", "prefill_chunk": 256}
    choice = make_plan(shape, OWN, Request(**settings)).choice
    for there, more in ((19, 20), (25, 26), (29, None)):
        least, enough = (
            sizes_of(shape, OWN, replace(choice, gpu_layers=count), Request(**settings)).needs.gpu
            for count in (there, more)
        )
        for room in (least, enough - 1):
            plan = make_plan(shape, OWN, Request(**settings, device_budget_bytes=room))
            assert (plan.fits, plan.choice.gpu_layers) == (True, there)
            # Of 12 layers that have rows those that are not there.
            assert plan.sizes.kv_cache == 8192 * 768 * (30 - there)
        if there == 19:
            refused = make_plan(shape, OWN, Request(**settings, device_budget_bytes=least - 1))
            assert (refused.fits, refused.choice.gpu_layers, refused.minimum) == (False, 19, refused.needs)
            with pytest.raises(MemoryBudgetExceeded, match=r"Its last 19 layers are not divided .* each other's keys"):
                require_fit(refused)
    never = sharing(1, 30)
    assert never.gpu_layer_counts == ()
    with pytest.raises(MemoryBudgetExceeded, match="Its last 30 layers are not divided"):
        require_fit(make_plan(never, OWN, Request(device_budget_bytes=520 * MIB)))


def test_a_table_that_stays_in_the_file_counts_with_what_is_read_of_it():
    shape, choice = layered(make_shape()), Choice(2048, "f16", "off", 0, 256, 0, 0, 1, gpu_layers=10)
    table = 1 << 30
    with_table = replace(layered(make_shape(), head=HEAD + table), table_bytes=table)
    none, some = (sizes_of(one, OWN, choice, Request()) for one in (shape, with_table))
    # Of 16 tiles, two large folios each.
    assert some.weights - none.weights == 16 * 2 * (2 << 20)


def test_a_model_with_room_is_offered_no_division():
    shape = layered(make_shape())
    plan = make_plan(shape, OWN, Request(device_budget_bytes=make_plan(shape, OWN, Request()).minimum.gpu))
    assert plan.alternatives
    assert all(other.choice.gpu_layers is None for other in plan.alternatives)


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_load_tells_which_layers_are_where(is_quiet):
    plans = [make_plan(layered(make_shape()), OWN, Request(device_budget_bytes=room)) for room in (ROOM, 2 << 30)]
    terminal = Terminal(io.StringIO(), err := io.StringIO(), quiet=is_quiet)
    for plan in plans:
        tell_plan(terminal, plan)
    there = plans[0].choice.gpu_layers
    said = f"a GPU has memory for the last {there} layers of 30; the CPU computes the others.\n"
    assert err.getvalue() == ("" if is_quiet else said)


def test_a_pass_takes_the_time_of_both():
    shape = layered(make_shape(), rope=0)
    choice = Choice(2048, "f16", "off", 0, 256, 0, 0, 1, gpu_layers=10)
    cache = 1024 * 30 * 768
    there = HEAD + 10 * LAYER
    wanted = 1e-3 + (96_000_000 - there + cache * 2 / 3) / 20e9 + 5e-4 + (there + cache / 3) / 100e9
    assert pass_seconds(shape, OWN, choice) == pytest.approx(wanted)
    every = pass_seconds(shape, OWN, replace(choice, gpu_layers=None))
    assert every < wanted < pass_seconds(shape, DEVICE, replace(choice, gpu_layers=None)) + 5e-4
    # Of experts a row reads a part, here a third, on both sides.
    dims = shape.model
    layer = Layer(dims.attention(), None, experts=Experts(8, 2, dims.feed_forward()))
    shape = replace(shape, model=dims.decoder("llama", layer), read_bytes=shape.layers.behind[0] // 3)
    wanted = 1e-3 + (2 * cache // 3 + 20 * LAYER // 3) / 20e9 + 5e-4 + (there // 3 + cache // 3) / 100e9
    assert pass_seconds(shape, OWN, choice) == pytest.approx(wanted, rel=1e-6)


def test_layers_with_windows_are_counted_on_the_gpu_by_number():
    shape = layered(make_shape(num_layers=2, context_length=2048, layer_windows=(512, 512)), rope=0)
    request = Request(ctx=2048, kv="f16", spec="off", prefill_chunk=128)
    one, both = (
        sizes_of(shape, OWN, Choice(2048, "f16", "off", 0, 128, 0, 0, 1, gpu_layers=count), request).gpu.kv_cache
        for count in (1, None)
    )
    assert 0 < 2 * one == both


@given(st.data(), shapes(), st.integers(1, 8 << 10), st.integers(500, 4 << 10))
@settings(max_examples=share_of(30))
def test_sums_budgets_and_alternatives_hold(data, shape, host, own):
    assume(shape.op_profile == "native")
    head = data.draw(st.integers(1, shape.weights_bytes // 2))
    shape = layered(shape, head, max(1, (shape.weights_bytes - head) // shape.model.num_layers), 0)
    asked = replace(data.draw(requests(shape)), budget_bytes=host * MIB, device_budget_bytes=own * MIB)
    plan = make_plan(shape, OWN, asked)
    assert plan.needs == Amounts(sum(term.bytes for term in plan.terms), sum(term.device_bytes for term in plan.terms))
    assert plan.fits == plan.needs.within(plan.budget)
    if plan.choice.gpu_layers is None:
        return
    assert plan.fits or plan.choice.gpu_layers == 1
    assert 0 < plan.choice.gpu_layers < shape.model.num_layers
    assert plan.minimum.within(plan.needs)
    assert not make_plan(replace(shape, layers=None), OWN, asked).fits
    least = replace(asked, budget_bytes=plan.minimum.host, device_budget_bytes=plan.minimum.gpu)
    assert make_plan(shape, OWN, least).fits
    for other in plan.alternatives:
        again = make_plan(shape, OWN, request_of(other.flags, plan.request))
        assert again.fits
        assert (again.choice, again.needs) == (other.choice, Amounts(other.total_bytes, other.device_bytes))
