"""Loads on GPUs that fail: what takes their place, what is told, and what a plan that was made earlier fixes."""

from __future__ import annotations

import gc
import io

import pytest

import edge_rt
from edge_rt.cli.commands import profile, verify
from edge_rt.cli.plan_speed import Speeds, measured_here
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.plan_report import plan_json, print_plan
from edge_rt.device.names import ON_CPU
from edge_rt.device.provider import GpuProviders
from edge_rt.errors import ConfigError, MemoryBudgetExceeded, RuntimeUnavailable
from edge_rt.memory.budget import Budget
from edge_rt.memory.device import presets
from edge_rt.memory.figures import CONTEXT_BYTES, DRIVER_BYTES
from edge_rt.ort.session import pool_threads
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.load_plan import claim
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from edge_rt.runtime.model import Model
from edge_rt.runtime.speculation.cost_model import CostStore
from edge_rt.system.machine import return_free_memory
from tests.helpers.fake_gpus import CPU_KEY, GIB, JETSON, LAPTOP, LARGE, FakeProvider, costs, gpu_key
from tests.memory.shapes import DEVICE


@pytest.fixture
def package(native_package):
    return open_package(native_package)


@pytest.fixture
def asked(package, tmp_path):
    """Options of a load where both are measured, and the GPU is faster."""
    store = CostStore(tmp_path / "costs")
    here = {"package_id": package.id, "threads": pool_threads()}
    store.save({**CPU_KEY, **here}, costs(10.0))
    store.save(gpu_key(LAPTOP, **here), costs(5.0))
    return LoadOptions(ctx=256, spec="off", costs=store, gpu_providers=GpuProviders(FakeProvider(LAPTOP)))


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_load_tries_every_gpu_that_is_faster_and_then_the_cpu(package, asked, is_planned):
    """The driver that is made up finds GPUs, but ONNX Runtime has no provider for them."""
    asked.costs.save(gpu_key(LARGE, package_id=package.id, threads=pool_threads()), costs(2.0))
    tried, budget = [], Budget(3 * GIB)
    own = GpuProviders(FakeProvider(LAPTOP, LARGE))
    options = asked.but(gpu_providers=own, on_plan=tried.append, memory=budget)
    with Model(package, options, plan_package(package, options) if is_planned else None) as model:
        assert [str(plan.device_choice.device) for plan in tried] == ["cuda:2", "cuda:1", "cpu"]
        assert (model.device, model.plan.device.gpu, model.device_choice.device) == (None, None, ON_CPU)
        assert (model.context_tokens, model.speculation.mode) == (256, "off")
        note = model.device_choice.note
        assert note.startswith("The CPU computes, because cuda:2 failed: ")
        assert " cuda:1 failed, too: " in note
        assert (model.describe()["device"], model.describe()["device_note"]) == ("cpu", note)
        assert model.generate("Hello", max_tokens=2, temperature=0.0).token_ids
        # Its share is given back by the GPU that failed.
        assert len(budget.claims) == 1
        assert model.plan.sizes.driver == DRIVER_BYTES
    assert budget.claims == ()


@pytest.fixture
def asked_there(package, asked):
    """The same where the GPU shares the machine's memory; it fails before it is made ready."""
    asked.costs.save(gpu_key(JETSON, package_id=package.id, threads=pool_threads()), costs(5.0))
    return asked.but(gpu_providers=GpuProviders(FakeProvider(JETSON)), memory=Budget(3 * GIB))


def test_a_gpu_that_failed_before_it_was_used_leaves_no_context_in_a_shared_budget(package, asked_there):
    budget, tried = asked_there.budget, []
    with Model(package, asked_there.but(on_plan=lambda _: tried.append(budget.gpu_bytes))) as model:
        assert model.device_choice.has_failed
        assert tried == [DRIVER_BYTES + CONTEXT_BYTES, DRIVER_BYTES]
        assert budget.free_bytes == 3 * GIB - model.plan.total_bytes
    with pytest.raises(RuntimeUnavailable):
        Model(package, asked_there.but(device="cuda"))
    assert budget.gpu_bytes == DRIVER_BYTES


def test_a_context_that_stays_is_counted_by_what_takes_the_place_of_its_gpu(package, asked_there):
    asked_there.gpu_providers.of(JETSON.device_name).make_ready(JETSON)
    with Model(package, asked_there) as model:
        assert model.device_choice.has_failed
        assert model.plan.sizes.driver == DRIVER_BYTES + CONTEXT_BYTES
        assert asked_there.budget.free_bytes == 3 * GIB - model.plan.total_bytes


def test_what_takes_the_place_of_a_gpu_is_planned_in_what_other_models_have_left(package, asked):
    """Its weights were to be on the GPU; in the memory that they need here another model was loaded meanwhile."""
    budget = Budget(3 * GIB)
    asked = asked.but(memory=budget, ctx=None, spec=None)
    # What earlier tests left would else be given back between the plans, which are few MiB apart.
    gc.collect()
    return_free_memory()
    whole = plan_package(package, asked.but(device="cpu"))
    tried = []

    def on_plan(plan):
        tried.append(plan)
        if len(tried) == 1:
            claimed = plan.total_bytes - plan.runtime_bytes
            # Less than the CPU wants, more than it needs, and no more can be claimed than is free.
            room = max((whole.total_bytes + whole.minimum_bytes) // 2 - whole.runtime_bytes, claimed)
            budget.claim("another", budget.free_bytes + claimed - room)

    with Model(package, asked.but(on_plan=on_plan)) as model:
        assert model.device_choice.has_failed
        assert model.plan.given_up
        assert not tried[0].fallback.given_up
        assert budget.free_bytes >= 0


def test_a_gpu_that_was_named_has_none_that_takes_its_place(package, asked):
    named = asked.but(device="cuda:1")
    for plan in (None, plan_package(package, named)):
        with pytest.raises(RuntimeUnavailable):
            Model(package, named, plan)
    with pytest.raises(RuntimeUnavailable, match="no GPU of that number"):
        plan_package(package, asked.but(device="cuda"))


@pytest.mark.parametrize(("gpu", "of_gpu"), [(LAPTOP, GIB), (JETSON, None)])
def test_a_usual_budget_of_device_memory_is_that_of_gpus_that_have_some(package, gpu, of_gpu):
    asked = LoadOptions(usual_device_memory="1GiB", gpu_providers=GpuProviders(FakeProvider(gpu)))
    for device, expected in ((gpu.device_name, of_gpu), ("cpu", None), ("auto", None)):
        assert plan_package(package, asked.but(device=device)).request.device_budget_bytes == expected
    given = plan_package(package, asked.but(device=LAPTOP.device_name, device_memory="2GiB")) if of_gpu else None
    assert given is None or given.request.device_budget_bytes == 2 * GIB


def test_a_prompt_cache_on_a_gpu_is_refused_before_anything_is_loaded(package, asked, tmp_path):
    """The made-up GPU has no provider for ONNX Runtime: what loads first would fail with that."""
    there = asked.but(device="cuda:1", prompt_cache=tmp_path / "prompts", memory=Budget(3 * GIB))
    with pytest.raises(ConfigError, match="A prompt cache cannot be used on a GPU"):
        Model(package, there)
    assert there.budget.claims == ()
    assert not (tmp_path / "prompts").exists()


def test_other_errors_are_those_of_the_cpu(package, asked):
    with pytest.raises(MemoryBudgetExceeded, match="does not fit"):
        Model(package, asked.but(memory="1MiB"))


def test_commands_that_run_several_models_decide_once(package, asked):
    terminal = Terminal(io.StringIO(), err := io.StringIO())
    assert profile._plan(terminal, package, asked, DEVICE).device_choice is None
    here = profile.holding(200 << 20)
    assert profile._plan(terminal, package, asked, here).device_choice.device == LAPTOP.device_name
    once, bits = verify._on_one_device(terminal, package, asked, "f16")
    assert (once.device_name, bits) == (LAPTOP.device_name, {})
    assert err.getvalue() == ""
    broken = asked.but(device_memory="800MiB", gpu_providers=GpuProviders(FakeProvider(LAPTOP, free=None)))
    assert profile._plan(terminal, package, broken, here).device_choice.device == ON_CPU
    once, _ = verify._on_one_device(terminal, package, broken, "f16")
    assert (once.device_name, once.device_memory) == (ON_CPU, None)
    assert err.getvalue().count("warning: The CPU computes") == 2


def test_a_plan_is_carried_out_on_the_device_that_it_was_made_for(package, asked):
    plan = plan_package(package, asked.but(device="cuda:1"))
    for other in ("cpu", "cuda"):
        with pytest.raises(ConfigError, match="another device"):
            Model(package, LoadOptions(plan=plan, device=other))
    with pytest.raises(ConfigError, match="already decided"):
        LoadOptions(plan=plan, device_memory=GIB)


@pytest.mark.parametrize("device", ["webgpu", "webgpu:1", "cuda", "cpu"])
def test_a_plan_that_counts_a_run_on_the_cpu_is_for_its_device_all_the_same(small_package, device):
    plan = plan_package(
        open_package(small_package), LoadOptions(device=device, gpu_providers=GpuProviders(FakeProvider(JETSON)))
    )
    assert plan.device.gpu is None
    assert (str(plan.device_choice.device), plan.device_choice.is_named) == (device, True)


@pytest.mark.parametrize("gpu", [LAPTOP, JETSON])
def test_models_that_share_a_budget_count_the_driver_and_a_shared_context_once(package, gpu):
    """Whichever of them is closed first; both stay with the process, where the CPU computes next as well."""
    own, budget = GpuProviders(FakeProvider(gpu)), Budget("4GiB")
    asked = LoadOptions(device=gpu.device_name, gpu_providers=own, ctx=256, memory=budget)
    on_cpu = claim(plan_package(package, asked.but(device="cpu")), asked)
    assert budget.gpu_bytes == 0
    of_gpu = DRIVER_BYTES + (CONTEXT_BYTES if gpu is JETSON else 0)
    first = claim(plan_package(package, asked), asked)
    own.of(gpu.device_name).make_ready(gpu)
    second = claim(plan_package(package, asked), asked)
    assert first.claim.bytes == second.claim.bytes
    held = budget.base_bytes + of_gpu
    assert budget.free_bytes == (4 << 30) - held - on_cpu.claim.bytes - 2 * first.claim.bytes
    for one in (on_cpu, first, second, first):
        one.release()
    assert budget.free_bytes == (4 << 30) - held
    again = claim(plan_package(package, asked.but(device="cpu")), asked)
    assert again.plan.runtime_bytes == held
    assert budget.free_bytes == (4 << 30) - again.plan.total_bytes


def test_a_plan_that_fits_beside_a_load_on_a_gpu_can_be_claimed(package):
    """The GPU is not open yet, but the budget counts its driver already."""
    budget = Budget("4GiB")
    asked = LoadOptions(device="cuda:1", gpu_providers=GpuProviders(FakeProvider(LAPTOP)), ctx=256, memory=budget)
    on_gpu, on_cpu = claim(plan_package(package, asked), asked), asked.but(device="cpu", spec="off")
    needed = plan_package(package, on_cpu)
    others = budget.claim("others", budget.free_bytes - (needed.minimum_bytes - needed.runtime_bytes) + (4 << 20))
    assert not plan_package(package, on_cpu).fits
    others.release()
    assert claim(plan_package(package, on_cpu), on_cpu).claim is not None
    on_gpu.release()


def test_a_budget_of_the_gpu_is_a_limit_and_what_is_free_there_a_forecast(package):
    asked = LoadOptions(device="cuda:1", gpu_providers=GpuProviders(FakeProvider(LAPTOP)), ctx=256, spec="off")
    limit = asked.but(device_memory=GIB)
    free, limited = (claim(plan_package(package, one), one) for one in (asked, limit))
    assert (free.is_strict, limited.is_strict) == (False, True)
    # One row of logits was planned.
    assert limited.most_logit_rows == limited.plan.choice.logit_rows == 1
    assert free.most_logit_rows is None
    done = free.to_json()
    assert done["device_bytes"] == free.plan.device_bytes == sum(done["device_terms"].values())
    assert done["device_budget_bytes"] == 6 * GIB


def test_what_does_not_fit_the_gpu_is_refused_before_it_is_opened(package):
    asked = LoadOptions(
        device="cuda:1", gpu_providers=GpuProviders(FakeProvider(LAPTOP)), device_memory="500MiB", ctx=256
    )
    with pytest.raises(MemoryBudgetExceeded, match="of the GPU") as refused:
        Model(package, asked)
    assert 'device_memory="' in refused.value.action


@pytest.mark.parametrize("name", ["jetson-orin-nano-8gb", "rpi5-8gb"])
def test_a_preset_is_nothing_to_run_on(native_package, name):
    with pytest.raises(ConfigError, match="a machine to plan for") as refused:
        edge_rt.load(native_package, device=name)
    assert presets()[name].text in refused.value.numbers


def test_the_speed_of_a_gpu_is_shown_as_measured(package, asked):
    plan = plan_package(package, asked.but(kv="f16"))
    found = measured_here(plan.shape, plan.device, asked.costs, asked.gpu_providers)
    assert found == {"f16": costs(5.0)}
    for measured, said in ((found, "+-30 %, measured here"), ({}, "of a typical GPU, not measured")):
        terminal = Terminal(out := io.StringIO(), io.StringIO())
        speeds = Speeds(plan.shape, plan.device, measured)
        print_plan(terminal, plan, speeds, (), verb=["edge-rt", "generate"], named=[], is_here=True)
        assert f"tokens per second ({said})" in out.getvalue()
        assert ("(+-30 %, measured here with another cache)" in out.getvalue()) == bool(measured)
        document = plan_json(plan, speeds)
        assert (document["speed_uncertainty"] is not None) == bool(measured)
        assert document["device"]["gpu"]["device_name"] == "cuda:1"
    assert Speeds(plan.shape, plan.device, found).rate(plan.choice).plain == pytest.approx(200)
