"""GPUs with Vulkan beside NVIDIA's: which are asked, what ``auto`` takes, and what other bits than the CPU's allow."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from edge_rt.cli.commands import verify
from edge_rt.cli.plan_speed import Speeds
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.plan_report import plan_json, print_plan
from edge_rt.cli.render.verify_report import print_findings
from edge_rt.device.driver import SelfTest
from edge_rt.device.names import DeviceName
from edge_rt.device.provider import GpuProviders
from edge_rt.device.vulkan import VulkanProvider
from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.memory.advice import require_fit
from edge_rt.memory.device import GENERIC_GPU, MACHINE, presets
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.facts import read_facts
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_load, plan_package
from edge_rt.runtime.speculation.cost_model import CostStore
from tests.device.test_vulkan import ARC, DRIVER, LLVMPIPE, FakeVulkan
from tests.helpers.fake_gpus import CPU_KEY, LAPTOP, FakeProvider, costs, gpu_key
from tests.memory.shapes import DEVICE, make_shape

SHAPE = replace(make_shape(), package_id="x")
HERE = replace(DEVICE, name=MACHINE, base_bytes=100 << 20)


def key(provider, name):
    """The key of costs that were measured on a GPU with Vulkan."""
    gpu = provider.listed_gpu(name)
    device = {"device": str(gpu.device_name), "provider": "EdgeRtVulkan", "text": gpu.name, **provider.facts(gpu)}
    return {**CPU_KEY, "device": device}


@pytest.fixture
def store(tmp_path):
    made = CostStore(tmp_path / "costs")
    made.save(CPU_KEY, costs(10.0))
    return made


def choice(store, *providers, **options):
    asked = LoadOptions(gpu_providers=GpuProviders(*providers), costs=store, **options)
    return plan_load(read_facts(SHAPE, asked, HERE), asked).device_choice


def test_its_driver_is_not_asked_where_nothing_was_measured_there(store):
    def never():
        raise AssertionError("it was asked")

    own = VulkanProvider(never, never, never)
    assert str(choice(store, own).device) == "cpu"
    assert not own.was_asked


def test_one_that_was_measured_is_taken_and_a_program_on_the_cpu_never(store, tmp_path):
    own = FakeVulkan(tmp_path, DRIVER + LLVMPIPE + ARC)
    store.save(key(own, DeviceName("vulkan", 0)), costs(1.0))
    assert str(choice(store, own).device) == "cpu"
    store.save(key(own, DeviceName("vulkan", 2)), costs(5.0))
    assert str(choice(store, own).device) == "vulkan:2"


@pytest.mark.parametrize(("cuda_ms", "expected"), [(4.0, "cuda:1"), (6.0, "vulkan:2")])
def test_both_drivers_of_a_gpu_are_compared_where_both_were_measured(store, tmp_path, cuda_ms, expected):
    own = FakeVulkan(tmp_path, DRIVER + ARC.replace("Arc A770", LAPTOP.name))
    store.save(key(own, DeviceName("vulkan", 2)), costs(5.0))
    store.save(gpu_key(LAPTOP), costs(cuda_ms))
    assert str(choice(store, FakeProvider(LAPTOP), own).device) == expected


def test_other_bits_are_told_once_and_not_taken_by_itself(store, tmp_path):
    own = FakeVulkan(tmp_path, DRIVER + ARC, SelfTest(False, {"fma": "differs"}))
    store.save(key(own, DeviceName("vulkan", 2)), costs(5.0))
    found = choice(store, own)
    assert str(found.device) == "cpu"
    assert "The device vulkan:2 runs there" in found.note
    found = choice(store, own, device="vulkan")
    assert str(found.device) == "vulkan:2"
    assert "its answers need not be the CPU's" in found.note
    (tmp_path / "same").mkdir()
    same = FakeVulkan(tmp_path / "same", DRIVER + ARC)
    assert choice(store, same, device="vulkan").note is None


def test_speed_of_a_gpu_in_shared_memory_is_that_of_the_machines_and_of_software_none(tmp_path):
    shared = LLVMPIPE.replace("type=software", "type=integrated").replace("llvmpipe", "an iGPU")
    found = []
    for number, line in enumerate((ARC, shared, LLVMPIPE)):
        (folder := tmp_path / str(number)).mkdir()
        name = DeviceName("vulkan", int(line.split("\t")[1]))
        asked = LoadOptions(device=str(name), gpu_providers=GpuProviders(FakeVulkan(folder, DRIVER + line)), ctx=256)
        found.append(plan_load(read_facts(SHAPE, asked, HERE), asked))
    typical = presets()[GENERIC_GPU].device.gpu
    assert [plan.device.gpu.bandwidth for plan in found] == [typical.bandwidth, HERE.bandwidth, HERE.bandwidth]
    assert [plan.device.gpu.row_cost for plan in found] == [typical.row_cost, typical.row_cost, HERE.row_cost]
    assert "not foretold" in found[2]._repr_html_()
    for plan, said in zip(found, ("of a typical GPU", "reads its memory", "speed not measured"), strict=True):
        terminal, speeds = Terminal(out := io.StringIO(), io.StringIO()), Speeds(plan.shape, plan.device, {})
        print_plan(terminal, plan, speeds, (), verb=["edge-rt", "generate"], named=[], is_here=True)
        assert said in out.getvalue()
        document = plan_json(plan, speeds)
        assert (document["tokens_per_second"] is None) == (plan is found[2])
        assert {one["tokens_per_second"] is None for one in document["alternatives"]} == {plan is found[2]}
    software = found[2]
    measured = Speeds(software.shape, software.device, {software.choice.kv_format: costs(5.0)})
    assert measured.rate(software.choice).plain == pytest.approx(200)


def test_verify_tells_what_the_self_test_found(tmp_path, native_package):
    own = FakeVulkan(tmp_path, DRIVER + ARC)
    asked = LoadOptions(device="vulkan", gpu_providers=GpuProviders(own), ctx=256)
    terminal = Terminal(out := io.StringIO(), io.StringIO())
    once, bits = verify._on_one_device(terminal, open_package(native_package), asked, "f16")
    assert bits == {"cpu_bits": True, "self_test": {"fma": "mended", "add": "as it is"}}
    run = {"device": str(once.device_name), **bits}
    print_findings(terminal, {"run": run, "by_drafter": {}, "identical": 1, "prompts": 1, "drafted": 1})
    assert "vulkan:2: the CPU's bits; mended: fma\n" in out.getvalue()


def test_layers_are_divided_with_the_cpu_where_bits_are_its_own(tmp_path, native_package):
    package = open_package(native_package)
    plans = []
    for has_cpu_bits in (True, False):
        (folder := tmp_path / str(has_cpu_bits)).mkdir()
        own = FakeVulkan(folder, DRIVER + ARC, SelfTest(has_cpu_bits))
        asked = LoadOptions(
            device="vulkan", gpu_providers=GpuProviders(own), ctx=256, kv="int8", spec="off", prefill_chunk=16
        )
        whole = plan_package(package, asked).needs.gpu
        plans.append(plan_package(package, asked.but(device_memory=whole - (1 << 20))))
    divided, refused = plans
    assert divided.choice.gpu_layers
    assert refused.choice.gpu_layers is None
    with pytest.raises(MemoryBudgetExceeded, match="not divided with the CPU, whose results differ"):
        require_fit(refused)
