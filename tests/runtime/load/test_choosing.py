"""What ``auto`` stands for, by arithmetic: a GPU that fails or has too little room leaves the next one, or the CPU."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from edge_rt.cli.loading import tell_device
from edge_rt.cli.render.console import Terminal
from edge_rt.device.names import ON_CPU, DeviceChoice, DeviceName
from edge_rt.errors import ConfigError
from edge_rt.memory.device import unmeasured_gpu
from edge_rt.memory.figures import CONTEXT_BYTES, DRIVER_BYTES
from edge_rt.memory.plan import Request, make_plan
from edge_rt.runtime.load.facts import Facts, GpuFacts, LostGpus
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import measured_speeds, plan_load
from edge_rt.runtime.speculation.cost_model import RowCosts
from tests.helpers.fake_gpus import GIB, JETSON, LAPTOP, LARGE, costs
from tests.memory.shapes import DEVICE, make_shape

SHAPE = make_shape()
FAILED = "The GPU cannot be opened."


def gpu(found, ms=None, *, free=6 * GIB, error=None, kv="f16"):
    """A GPU whose passes take some time; None: that was not measured."""
    figures = unmeasured_gpu(
        found.name, found.total_bytes, free, is_unified=found.is_unified, device_name=found.device_name
    )
    return GpuFacts(found, None if error else figures, {} if ms is None else {kv: costs(ms)}, error)


def facts(*gpus, cpu_ms=10.0, **changes):
    measured = {} if cpu_ms is None else {"f16": costs(cpu_ms)}
    return replace(Facts(SHAPE, DEVICE, driver_bytes=0, gpus=gpus, cpu_costs=measured), **changes)


def choice(*gpus, options=None, **changes):
    return plan_load(facts(*gpus, **changes), LoadOptions(**(options or {}))).device_choice


def test_a_gpu_is_taken_that_is_clearly_faster():
    assert choice(gpu(LAPTOP, 5.0)) == DeviceChoice(LAPTOP.device_name)
    assert choice(gpu(LAPTOP, 5.0), cpu_ms=5.1) == DeviceChoice(ON_CPU)
    assert choice(gpu(LAPTOP, 5.0), cpu_ms=5.3).device == LAPTOP.device_name


@pytest.mark.parametrize(("large_ms", "expected"), [(2.0, LARGE), (7.0, LAPTOP)])
def test_of_several_the_fastest_is_taken(large_ms, expected):
    assert choice(gpu(LAPTOP, 5.0), gpu(LARGE, large_ms)).device == expected.device_name


@pytest.mark.parametrize(
    ("one", "cpu_ms", "said"),
    [
        (gpu(LAPTOP), 10.0, "--calibrate --device cuda:1 measures it."),
        (gpu(LAPTOP, 5.0), None, "--calibrate --device cpu measures it."),
        (gpu(LAPTOP, 5.0, kv="int4"), 10.0, "--calibrate --device cpu, and then cuda:1, measures both alike."),
    ],
)
def test_what_was_not_measured_is_not_guessed(one, cpu_ms, said):
    found = choice(one, cpu_ms=cpu_ms)
    assert (found.device, found.has_failed) == (ON_CPU, False)
    assert found.note.startswith("a laptop's GPU is not used: ")
    assert found.note.endswith(said)


def test_of_several_gpus_those_that_are_not_used_are_told_but_not_an_equal_one():
    assert choice(gpu(LAPTOP, 5.0), gpu(LARGE)).note.startswith("a large GPU is not used: its speed with this model")
    assert choice(gpu(LAPTOP, 5.0), gpu(replace(LAPTOP, number=2))).note is None


def test_a_driver_that_fails_is_told_where_its_gpu_was_faster():
    found = choice(lost=(LostGpus("The driver failed.", {"f16": costs(5.0)}),))
    assert found.note == "The CPU computes, because the GPU failed: The driver failed."
    assert choice(lost=(LostGpus("The driver failed.", {"f16": costs(9.9)}),)) == DeviceChoice(ON_CPU)
    assert choice(lost=(LostGpus("The driver failed."),)) == DeviceChoice(ON_CPU)


@pytest.mark.parametrize(
    ("free", "options", "said"),
    [
        (780 << 20, {}, "has no room for all that the CPU keeps; the device cuda:1 runs there with less."),
        (600 << 20, {}, "the model does not fit its memory: it needs at least "),
        # The GPU has plenty, but the driver is more than the process may take.
        (6 * GIB, {"memory": 250 << 20}, "a run there does not fit the memory of the process: it needs at least "),
    ],
)
def test_a_faster_gpu_with_too_little_room_is_told(free, options, said):
    found = choice(gpu(LAPTOP, 5.0, free=free), options=options)
    assert found.device == ON_CPU
    assert "a laptop's GPU is faster (" in found.note
    assert said in found.note


def test_a_gpu_that_fits_with_less_is_taken_where_the_cpu_does_not_fit():
    large = replace(SHAPE, weights_bytes=4800 << 20, largest_tensor_bytes=300 << 20)
    large = replace(large, model=replace(large.model, num_layers=32))
    machine = replace(DEVICE, available_bytes=4 * GIB, total_bytes=8 * GIB)
    plan = plan_load(facts(gpu(LAPTOP, 5.0, free=5400 << 20), shape=large, machine=machine), LoadOptions())
    assert plan.device_choice == DeviceChoice(LAPTOP.device_name)
    assert plan.given_up
    assert not plan.fallback.fits


def test_a_gpu_that_shares_memory_has_less_room_in_the_same_budget():
    pinned = {"spec": "off", "prefill_chunk": 64}
    short = make_plan(SHAPE, DEVICE, Request(**pinned)).minimum_bytes
    assert choice(gpu(JETSON, 5.0), options={**pinned, "memory": short}).device == ON_CPU
    assert choice(gpu(JETSON, 5.0), options=pinned).device == JETSON.device_name


def test_the_next_gpu_takes_the_place_of_one_that_cannot_be_opened():
    found = choice(gpu(LAPTOP, 5.0), gpu(LARGE, 2.0, error=FAILED))
    assert (found.device, found.has_failed) == (LAPTOP.device_name, True)
    assert found.note == f"The GPU cuda:1 computes, because cuda:2 failed: {FAILED}"
    found = choice(gpu(LAPTOP, 5.0, error=FAILED), gpu(LARGE, 2.0, error=FAILED))
    assert found.note == f"The CPU computes, because cuda:2 failed: {FAILED} cuda:1 failed, too: {FAILED}"


def test_a_plan_has_those_that_are_carried_out_if_its_gpu_fails():
    found = facts(gpu(LAPTOP, 5.0), gpu(LARGE, 2.0))
    asked = LoadOptions(ctx=512, kv="int8", memory=3 * GIB, device_memory=GIB)
    plans, plan = [], plan_load(found, asked)
    while plan is not None:
        plans.append(plan)
        plan = plan.fallback
    assert [str(one.device_choice.device) for one in plans] == ["cuda:2", "cuda:1", "cpu"]
    assert [one.budget.gpu for one in plans] == [GIB, GIB, 0]
    assert {(one.choice.ctx, one.choice.kv_format, one.budget_bytes) for one in plans} == {(512, "int8", 3 * GIB)}
    # A GPU that failed leaves its driver.
    assert {one.sizes.driver for one in plans} == {DRIVER_BYTES}


def test_a_budget_of_a_gpu_where_the_cpu_computes_is_refused_with_the_reason_unless_the_gpu_failed():
    budget = {"device_memory": "400MiB"}
    with pytest.raises(ConfigError, match=r"planned for the CPU\. a laptop's GPU is faster .* not fit its memory"):
        choice(gpu(LAPTOP, 5.0), options=budget)
    with pytest.raises(ConfigError, match="for native packages on a GPU"):
        choice(options=budget)
    assert choice(gpu(LAPTOP, 5.0, error=FAILED), options=budget).has_failed


def test_wrong_options_are_refused_whatever_computes():
    with pytest.raises(ConfigError, match="context is out of range"):
        choice(gpu(LAPTOP, 5.0), options={"ctx": 1})


@pytest.mark.parametrize("device", ["cpu", "webgpu:1", "cuda:1"])
def test_a_device_that_was_named_is_not_chosen(device):
    gpus = (gpu(LAPTOP),) if device.startswith("cuda") else ()
    plan = plan_load(facts(*gpus), LoadOptions(device=device))
    assert plan.device_choice == DeviceChoice(LoadOptions(device=device).device_name, is_named=True)
    assert plan.fallback is None
    assert (plan.device.gpu is not None) == device.startswith("cuda")


class TestMemory:
    def plan(self, one, **changes):
        options = {"device": str(one.gpu.device_name), "ctx": 512, **changes.pop("options", {})}
        return plan_load(facts(one, **changes), LoadOptions(**options))

    def test_every_plan_for_a_gpu_counts_a_context_and_the_driver(self):
        plan = self.plan(gpu(LAPTOP), base_bytes=100 << 20)
        assert plan.sizes.gpu.context == CONTEXT_BYTES
        assert (plan.base_bytes, plan.runtime_bytes) == (100 << 20, (100 << 20) + DRIVER_BYTES)

    @pytest.mark.parametrize("driver", [0, DRIVER_BYTES])
    def test_the_cpu_counts_a_driver_that_was_asked(self, driver):
        plan = plan_load(facts(driver_bytes=driver, base_bytes=100 << 20), LoadOptions(device="cpu"))
        assert (plan.base_bytes, plan.runtime_bytes) == (100 << 20, (100 << 20) + driver)

    def test_another_machine_counts_its_own_driver(self):
        machine = replace(DEVICE, gpu=replace(gpu(LAPTOP).figures, device_name=None))
        plan = plan_load(Facts(SHAPE, machine, is_here=False), LoadOptions(ctx=512))
        assert (plan.sizes.driver, plan.device_choice) == (DRIVER_BYTES, None)

    def test_a_context_that_is_there_already_counts_as_available_where_memory_is_shared(self):
        first, second = (self.plan(gpu(JETSON), context_bytes=count) for count in (0, CONTEXT_BYTES))
        assert second.budget_bytes - first.budget_bytes == CONTEXT_BYTES
        assert first.total_bytes == second.total_bytes

    def test_there_is_one_budget_where_memory_is_shared(self):
        plan = self.plan(gpu(JETSON), options={"memory": 3 * GIB})
        assert plan.needs.gpu == 0
        assert plan.total_bytes == sum(term.bytes + term.device_bytes for term in plan.terms)
        with pytest.raises(ConfigError, match="no memory of its own"):
            self.plan(gpu(JETSON), options={"device_memory": GIB})

    def test_what_models_share_of_a_budget_goes_before_its_size(self):
        plan = self.plan(gpu(LAPTOP), budget_bytes=2 * GIB, options={"memory": 3 * GIB, "device_memory": "1GiB"})
        assert (plan.budget.host, plan.budget.gpu) == (2 * GIB, GIB)

    def test_a_closed_model_gives_back_what_it_surely_held(self):
        plan = self.plan(gpu(LAPTOP))
        assert plan.held_device_bytes == {DeviceName("cuda", 1): plan.sizes.gpu.surely_held}
        assert plan_load(facts(), LoadOptions(device="cpu")).held_device_bytes == {}


class TestSpeeds:
    CHOICE = make_plan(SHAPE, DEVICE, Request(ctx=400, kv="f16", spec="off")).choice

    def test_the_deepest_context_that_both_have_up_to_half_of_it(self):
        gpu = RowCosts((1, 8), (64, 100, 320), ((1.0, 2.0), (4.0, 5.0), (9.0, 9.0)))
        cpu = RowCosts((1, 8), (64, 100, 1024), ((2.0, 4.0), (8.0, 9.0), (16.0, 20.0)))
        found = measured_speeds({"f16": gpu}, {"f16": cpu}, self.CHOICE, SHAPE)
        assert found == (pytest.approx(250), pytest.approx(125))
        shallow = replace(self.CHOICE, ctx=20)
        assert measured_speeds({"f16": gpu}, {"f16": cpu}, shallow, SHAPE) == (pytest.approx(1000), pytest.approx(500))
        assert measured_speeds({"f16": gpu}, {"f16": costs(1.0, (7,))}, self.CHOICE, SHAPE) is None

    def test_the_cache_of_the_plan_or_the_largest_that_both_have(self):
        gpu = {"f16": costs(1.0), "int8": costs(2.0), "int4": costs(4.0)}
        for kv, expected in (("f16", 1000), ("int4", 250), ("k8v4", 500)):
            choice = replace(self.CHOICE, kv_format=kv)
            of_cpu = gpu if kv != "k8v4" else {"int8": costs(2.0), "int4": costs(4.0)}
            assert measured_speeds(gpu, of_cpu, choice, SHAPE)[0] == pytest.approx(expected)
        assert measured_speeds({"f16": costs(1.0)}, {"int8": costs(1.0)}, self.CHOICE, SHAPE) is None

    def test_drafts_count_where_passes_of_their_rows_were_measured_on_both(self):
        """The GPU is as fast with a row, and cheaper with several."""
        drafting = make_plan(SHAPE, DEVICE, Request(ctx=400, kv="f16", draft_max=8)).choice
        gpu, cpu = costs(10.0, growth=0.01), costs(10.0, growth=2.0)
        found = measured_speeds({"f16": gpu}, {"f16": cpu}, drafting, SHAPE)
        assert found[0] > 1.5 * found[1]
        few = costs(10.0, rows=(1, 2), growth=0.01)
        found = measured_speeds({"f16": few}, {"f16": cpu}, drafting, SHAPE)
        assert found == (pytest.approx(100), pytest.approx(100))


@pytest.mark.parametrize("is_quiet", [False, True])
def test_notes_are_told_and_failures_always(is_quiet):
    terminal = Terminal(io.StringIO(), err := io.StringIO(), quiet=is_quiet)
    for one in (DeviceChoice(ON_CPU), DeviceChoice(ON_CPU, "A."), DeviceChoice(ON_CPU, failures=(("cuda", "B."),))):
        tell_device(terminal, one)
    said = "warning: The CPU computes, because cuda failed: B.\n"
    assert err.getvalue() == ("" if is_quiet else "A.\n") + said
