"""Plans of loads on GPUs: what the driver says of one, what is refused before anything is opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import edge_rt
from edge_rt.cli.commands.plan import with_driver
from edge_rt.device.driver import Gpu, GpuReport
from edge_rt.device.provider import GpuProvider
from edge_rt.errors import ConfigError, MemoryBudgetExceeded, RuntimeUnavailable
from edge_rt.memory.budget import Budget
from edge_rt.memory.device import presets, this_device
from edge_rt.memory.figures import Amounts
from edge_rt.memory.gpu_terms import CONTEXT_BYTES, DRIVER_BYTES
from edge_rt.memory.request import Request
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.devices import gpu_figures
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_load, plan_package, resident_bytes

GIB = 1 << 30
LAPTOP = Gpu(0, "a laptop's GPU", 89, 8 * GIB, is_integrated=False)
OLD = Gpu(0, "an old GPU", 61, 2 * GIB, is_integrated=False)
JETSON = Gpu(0, "Orin", 87, 7 * GIB, is_integrated=True)


class FakeLibrary:
    """A driver with one GPU, of which 6 GiB are free; one that shares its memory, or is old, is never asked."""

    def __init__(self, gpu):
        self._gpu = gpu

    def report(self):
        return GpuReport(13000, (self._gpu,))

    def set_kernels(self, number, cubins):
        pass

    def free_bytes(self, number):
        assert (number, self._gpu.is_integrated, self._gpu.can_compute) == (0, False, True)
        return 6 * GIB


class FakeProvider(GpuProvider):
    def __init__(self, gpu):
        super().__init__(lambda: Path("library"), lambda gpu, report: {})
        self.fake = FakeLibrary(gpu)

    @property
    def library(self):
        return self.fake


def test_a_gpu_has_what_is_free_there():
    found = gpu_figures("cuda", "native", FakeProvider(LAPTOP))
    assert (found.name, found.total_bytes, found.available_bytes) == ("a laptop's GPU", 8 * GIB, 6 * GIB)
    assert not found.is_unified


def test_what_another_model_gives_back_is_free_but_no_more_than_there_is():
    free = [gpu_figures("cuda:0", "native", FakeProvider(LAPTOP), freed).available_bytes for freed in (GIB, 4 * GIB)]
    assert free == [7 * GIB, 8 * GIB]


def test_a_gpu_that_shares_memory_is_not_opened():
    found = gpu_figures("cuda", "native", FakeProvider(JETSON))
    assert (found.is_unified, found.total_bytes) == (True, 7 * GIB)


@pytest.mark.parametrize("device", ["auto", "cpu", "webgpu"])
def test_no_driver_is_asked_for_other_devices(device):
    assert gpu_figures(device, "native") is None


@pytest.mark.parametrize("op_profile", ["native", "portable"])
def test_a_gpu_that_is_not_there_is_refused(op_profile):
    with pytest.raises(RuntimeUnavailable, match="no GPU of that number"):
        gpu_figures("cuda:1", op_profile, FakeProvider(LAPTOP))


def test_an_old_gpu_is_refused_for_native_packages_alone():
    """ONNX Runtime's own provider may know it; its memory is not planned, and it is not opened for that."""
    with pytest.raises(RuntimeUnavailable, match="The GPU is too old"):
        gpu_figures("cuda", "native", FakeProvider(OLD))
    assert gpu_figures("cuda", "portable", FakeProvider(OLD)) is None


def test_an_old_gpu_among_others_is_refused_before_it_is_planned_for():
    both = FakeProvider(OLD)
    both.fake.report = lambda: GpuReport(13000, (OLD, replace(LAPTOP, number=1)))
    with pytest.raises(RuntimeUnavailable, match="The GPU is too old"):
        gpu_figures("cuda", "native", both)


class TestPackages:
    def test_a_package_is_planned_for_the_gpu(self, native_package):
        package = open_package(native_package)
        asked = LoadOptions(
            device="cuda", gpu_provider=FakeProvider(LAPTOP), memory=3 * GIB, device_memory="1GiB", ctx=256
        )
        plan = plan_package(package, asked)
        assert plan.fits
        assert plan.budget == Amounts(3 * GIB, GIB)
        weights = {term.name: (term.bytes, term.device_bytes) for term in plan.terms}["weights"]
        assert weights == (0, package.manifest.files["weights.bin"].size)

    def test_a_second_model_counts_no_second_context(self, native_package):
        """Whoever opened the GPU, this process has one context of it, which is not free any more."""
        asked = LoadOptions(device="cuda", gpu_provider=FakeProvider(LAPTOP), ctx=256, base_bytes=100 << 20)
        first = plan_package(open_package(native_package), asked)
        asked.gpu_provider.make_ready(0)
        second = plan_package(open_package(native_package), asked)
        assert (first.device.gpu.has_context, second.device.gpu.has_context) == (False, True)
        assert first.needs.gpu - second.needs.gpu == CONTEXT_BYTES
        assert first.base_bytes == second.base_bytes == 100 << 20
        assert first.runtime_bytes == second.runtime_bytes == (100 << 20) + DRIVER_BYTES

    def test_a_budget_has_room_for_the_context_that_stays(self, native_package):
        """It stays on the GPU when a model is closed, whether the next one replaces it (``base_bytes``) or not."""
        package, own = open_package(native_package), FakeProvider(LAPTOP)
        asked = LoadOptions(device="cuda", gpu_provider=own, ctx=256, device_memory=GIB)
        replacing = asked.but(base_bytes=100 << 20)
        first = plan_load(package, asked)
        own.make_ready(0)
        second = plan_load(package, asked.but(device_memory="64MiB"))
        assert [one.plan.sizes.gpu.context for one in (first, second)] == [CONTEXT_BYTES, 0]
        assert plan_package(package, replacing).sizes.gpu.context == CONTEXT_BYTES
        first.release()
        first.release()
        assert plan_package(package, asked).sizes.gpu.context == CONTEXT_BYTES
        with pytest.raises(MemoryBudgetExceeded, match="of the GPU"):
            plan_load(package, asked.but(device_memory="64MiB"))

    def test_a_shared_budget_has_room_for_the_context_that_stays_in_shared_memory(self, native_package):
        package, own, budget = open_package(native_package), FakeProvider(JETSON), Budget("4GiB")
        asked = LoadOptions(device="cuda", gpu_provider=own, ctx=256, memory=budget)
        claims = []
        for _ in range(2):
            loaded = plan_load(package, asked)
            own.make_ready(0)
            claims.append((loaded.plan.sizes.gpu.context, loaded.claim.bytes, budget.free_bytes))
            loaded.release()
        assert claims[0] == claims[1]
        assert claims[0][0] == CONTEXT_BYTES

    def test_models_in_shared_memory_count_the_context_once_and_leave_it(self, native_package):
        """Whichever of them is closed first, and also where the CPU computes next; not if the GPU was never opened."""
        package, own, budget = open_package(native_package), FakeProvider(JETSON), Budget("4GiB")
        asked = LoadOptions(device="cuda", gpu_provider=own, ctx=256, memory=budget)
        plan_load(package, asked).release()
        assert budget.context_bytes == 0
        first = plan_load(package, asked)
        own.make_ready(0)
        second = plan_load(package, asked)
        assert first.claim.bytes == second.claim.bytes
        shared = budget.base_bytes + DRIVER_BYTES + CONTEXT_BYTES
        assert budget.free_bytes == (4 << 30) - shared - 2 * second.claim.bytes
        for loaded, left in ((first, second.claim.bytes), (second, 0)):
            loaded.release()
            assert budget.free_bytes == (4 << 30) - shared - left
        assert plan_package(package, asked.but(device="cpu")).budget_bytes == (4 << 30) - CONTEXT_BYTES
        assert plan_package(package, asked).budget_bytes == 4 << 30

    @pytest.mark.parametrize("has_a_model", [True, False])
    def test_the_driver_stays_in_a_shared_budget(self, native_package, has_a_model):
        """A model on a GPU brings it, whether the process had a model on the CPU before or not; then all share it."""
        package, own, budget = open_package(native_package), FakeProvider(LAPTOP), Budget("4GiB")
        asked = LoadOptions(device="cuda", gpu_provider=own, ctx=256, memory=budget)
        if has_a_model:
            plan_load(package, asked.but(device="cpu")).release()
            assert budget.driver_bytes == 0
        claims = []
        for _ in range(2):
            loaded = plan_load(package, asked)
            own.make_ready(0)
            claims.append(loaded.claim.bytes)
            assert budget.free_bytes == (4 << 30) - loaded.plan.total_bytes
            loaded.release()
            assert budget.free_bytes == (4 << 30) - loaded.plan.runtime_bytes
        assert claims[0] == claims[1]
        on_cpu = plan_load(package, asked.but(device="cpu"))
        assert budget.free_bytes == (4 << 30) - on_cpu.plan.total_bytes
        assert on_cpu.plan.runtime_bytes == loaded.plan.runtime_bytes

    def test_a_load_that_failed_leaves_no_driver_in_a_shared_budget(self, native_package):
        """As when the kernels cannot be compiled, before the GPU is opened."""
        package, own, budget = open_package(native_package), FakeProvider(LAPTOP), Budget("4GiB")
        asked = LoadOptions(device="cuda", gpu_provider=own, ctx=256, memory=budget)
        failed = plan_load(package, asked)
        assert budget.driver_bytes == DRIVER_BYTES
        failed.release()
        failed.release()
        assert budget.driver_bytes == own.asked_bytes < DRIVER_BYTES
        assert budget.free_bytes == (4 << 30) - budget.base_bytes - own.asked_bytes

    def test_a_plan_that_fits_beside_a_load_on_a_gpu_can_be_claimed(self, native_package):
        """The GPU is not ready yet, but the budget counts its driver already."""
        package, own, budget = open_package(native_package), FakeProvider(LAPTOP), Budget("4GiB")
        asked = LoadOptions(device="cuda", gpu_provider=own, ctx=256, memory=budget)
        on_gpu, on_cpu = plan_load(package, asked), asked.but(device="cpu", spec="off")
        needed = plan_package(package, on_cpu)
        others = budget.claim("others", budget.free_bytes - (needed.minimum_bytes - needed.runtime_bytes) + (4 << 20))
        assert not plan_package(package, on_cpu).fits
        with pytest.raises(MemoryBudgetExceeded):
            plan_load(package, on_cpu)
        others.release()
        assert plan_load(package, on_cpu).claim.driver_bytes == DRIVER_BYTES
        on_gpu.release()

    def test_what_a_driver_takes_that_was_asked_is_counted_where_the_cpu_computes(self, native_package):
        """A command's memory is fixed before the driver is asked, which the memory of a running process includes."""
        package, own = open_package(native_package), FakeProvider(LAPTOP)
        asked = LoadOptions(gpu_provider=own, ctx=256, base_bytes=100 << 20)
        size, libraries = 32 << 20, []

        def report():
            libraries[:] = libraries or [b"x" * size]
            return GpuReport(13000, (LAPTOP,))

        own.fake.report = report
        assert plan_package(package, asked).runtime_bytes == 100 << 20
        for _ in range(2):
            own.report()
        # Other memory of the process may come and go meanwhile.
        assert abs(own.asked_bytes - size) <= 8 << 20
        on_cpu, on_gpu = plan_package(package, asked), plan_package(package, asked.but(device="cuda"))
        assert on_cpu.runtime_bytes == (100 << 20) + own.asked_bytes
        assert on_gpu.runtime_bytes == (100 << 20) + DRIVER_BYTES
        assert on_cpu.base_bytes == on_gpu.base_bytes == 100 << 20
        measured = plan_package(package, asked.but(base_bytes=None))
        assert abs(measured.runtime_bytes - resident_bytes()) <= 8 << 20

    def test_plans_of_commands_count_what_the_driver_took_if_that_is_more(self, native_package):
        """As a load does; of another machine's GPU nothing was asked."""
        package, own, size, libraries = open_package(native_package), FakeProvider(LAPTOP), 160 << 20, []

        def free_bytes(number):
            libraries[:] = libraries or [b"x" * size]
            return 6 * GIB

        own.fake.free_bytes = free_bytes
        machine = replace(this_device(), gpu=gpu_figures("cuda", "native", own))
        asked = LoadOptions(gpu_provider=own, ctx=256, base_bytes=100 << 20)
        loaded = plan_package(package, asked.but(device="cuda")).sizes.driver
        assert loaded == own.asked_bytes >= size - (8 << 20)
        assert with_driver(Request(ctx=256), machine, own).driver_bytes == loaded
        assert with_driver(Request(ctx=256), replace(machine, gpu=None), own).driver_bytes == loaded
        assert plan_package(package, asked, device=machine).sizes.driver == loaded
        elsewhere = replace(machine, gpu=replace(machine.gpu, device_name=None))
        assert plan_package(package, asked, device=elsewhere).sizes.driver == DRIVER_BYTES

    def test_the_driver_is_part_of_what_the_process_holds(self, native_package):
        """Measured memory of a process that has opened a GPU includes the driver, which is not counted twice."""
        package, own = open_package(native_package), FakeProvider(LAPTOP)
        asked = LoadOptions(gpu_provider=own, ctx=256, device="cpu")
        own.make_ready(0)
        after = plan_package(package, asked)
        # Other memory of the process may come and go; between two lines it hardly does.
        assert abs(after.runtime_bytes - resident_bytes()) <= 8 << 20
        assert after.base_bytes == after.runtime_bytes - DRIVER_BYTES

    def test_models_that_share_a_budget_count_the_driver_once(self, native_package):
        own, budget = FakeProvider(LAPTOP), Budget("4GiB")
        asked = LoadOptions(device="cuda", gpu_provider=own, ctx=256, memory=budget)
        cpu = plan_load(open_package(native_package), asked.but(device="cpu"))
        first = plan_load(open_package(native_package), asked)
        own.make_ready(0)
        second = plan_load(open_package(native_package), asked)
        assert first.plan.runtime_bytes == cpu.plan.runtime_bytes + DRIVER_BYTES
        assert first.claim.bytes == second.claim.bytes
        assert budget.driver_bytes == DRIVER_BYTES
        assert (
            budget.free_bytes
            == (4 << 30)
            - sum(plan.total_bytes for plan in (cpu.plan, first.plan, second.plan))
            + 2 * second.plan.runtime_bytes
            - DRIVER_BYTES
        )

    def test_on_a_jetson_there_is_one_budget(self, native_package):
        package = open_package(native_package)
        jetson = FakeProvider(JETSON)
        plan = plan_package(package, LoadOptions(device="cuda", gpu_provider=jetson, memory=3 * GIB, ctx=256))
        assert plan.needs.gpu == 0
        assert plan.total_bytes == sum(term.bytes + term.device_bytes for term in plan.terms)
        with pytest.raises(ConfigError, match="no memory of its own"):
            plan_package(package, LoadOptions(device="cuda", gpu_provider=jetson, device_memory=GIB))

    def test_what_does_not_fit_the_gpu_is_refused_before_it_is_opened(self, native_package):
        asked = LoadOptions(device="cuda", gpu_provider=FakeProvider(LAPTOP), device_memory="500MiB", ctx=256)
        with pytest.raises(MemoryBudgetExceeded, match="of the GPU") as refused:
            plan_load(open_package(native_package), asked)
        assert 'device_memory="' in refused.value.action

    def test_a_plan_is_carried_out_on_the_device_that_it_was_made_for(self, native_package):
        package = open_package(native_package)
        plan = plan_package(package, LoadOptions(device="cuda", gpu_provider=FakeProvider(LAPTOP), ctx=256))
        for other in ("cpu", "cuda:1"):
            with pytest.raises(ConfigError, match="another device"):
                plan_load(package, LoadOptions(plan=plan, device=other))
        assert plan_load(package, LoadOptions(plan=plan)).options.device == "cuda"
        with pytest.raises(ConfigError, match="already decided"):
            LoadOptions(plan=plan, device_memory=GIB)
        done = plan_load(package, LoadOptions(plan=plan, device="cuda")).to_json()
        assert done["device_bytes"] == plan.device_bytes == sum(done["device_terms"].values())
        assert done["device_budget_bytes"] == 6 * GIB

    def test_a_budget_of_the_gpu_is_a_limit_and_what_is_free_there_a_forecast(self, native_package):
        package, own = open_package(native_package), FakeProvider(LAPTOP)
        asked = LoadOptions(device="cuda", gpu_provider=own, ctx=256, spec="off")
        free, limited = plan_load(package, asked), plan_load(package, asked.but(device_memory=GIB))
        assert (free.is_strict, limited.is_strict) == (False, True)
        # One row of logits was planned.
        assert limited.most_logit_rows == limited.plan.choice.logit_rows == 1
        assert free.most_logit_rows is None

    def test_the_model_that_is_replaced_gives_its_memory_back(self, native_package):
        """On its own GPU; others have no more than before."""
        package, own = open_package(native_package), FakeProvider(LAPTOP)
        own.fake.report = lambda: GpuReport(13000, (LAPTOP, replace(LAPTOP, number=1)))
        own.fake.free_bytes = lambda number: 6 * GIB
        asked = LoadOptions(gpu_provider=own, ctx=256)
        for device, other in (("cuda", "cuda:1"), ("cuda:1", "cuda:0")):
            closed = plan_package(package, asked.but(device=device))
            held, freeing = closed.sizes.gpu.surely_held, asked.but(freed_device_bytes=closed.held_device_bytes)
            assert held > 0
            budgets = [plan_package(package, freeing.but(device=name)).budget.gpu for name in (device, other)]
            assert budgets == [6 * GIB + held, 6 * GIB]
        assert plan_package(package, asked.but(device="cpu")).held_device_bytes == {}

    def test_device_memory_is_refused_on_the_cpu(self, native_package):
        with pytest.raises(ConfigError, match="for native packages on a GPU"):
            edge_rt.load(native_package, device_memory="1GiB")

    @pytest.mark.parametrize("name", ["jetson-orin-nano-8gb", "rpi5-8gb"])
    def test_a_preset_is_nothing_to_run_on(self, native_package, name):
        with pytest.raises(ConfigError, match="a machine to plan for") as refused:
            edge_rt.load(native_package, device=name)
        assert presets()[name].text in refused.value.numbers
