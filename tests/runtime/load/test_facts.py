"""What a plan is computed from: which driver is asked, what is measured, what a process holds."""

from __future__ import annotations

import mmap
from dataclasses import replace

import pytest

from edge_rt.device.cuda import CudaProvider
from edge_rt.device.names import DeviceName
from edge_rt.device.provider import GpuProviders
from edge_rt.errors import ConfigError, RuntimeUnavailable
from edge_rt.memory.budget import Budget
from edge_rt.memory.device import MACHINE
from edge_rt.memory.figures import CONTEXT_BYTES, DRIVER_BYTES
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.facts import read_facts, resident_bytes
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from edge_rt.runtime.speculation.cost_model import CostStore
from tests.helpers.fake_gpus import CPU_KEY, GIB, JETSON, LAPTOP, LARGE, OLD, FakeProvider, costs, gpu_key
from tests.memory.shapes import DEVICE, make_shape

SHAPE = make_shape()
HERE = replace(DEVICE, name=MACHINE, base_bytes=100 << 20)


class TakingProvider(FakeProvider):
    """A driver that takes memory of the process when it is asked."""

    TAKEN = 96 << 20

    @property
    def library(self):
        if not hasattr(self, "_taken"):
            # Pages of their own: what was freed before would be given again, and not be seen.
            self._taken = mmap.mmap(-1, self.TAKEN)
            for page in range(0, self.TAKEN, mmap.PAGESIZE):
                self._taken[page] = 1
        return super().library


def never(*asked):
    raise AssertionError(f"asked for {asked}")


@pytest.fixture
def store(tmp_path):
    """Costs of both: the GPU takes half the time."""
    made = CostStore(tmp_path / "costs")
    made.save(CPU_KEY, costs(10.0))
    made.save(gpu_key(LAPTOP), costs(5.0))
    return made


def read(own, store=None, shape=SHAPE, machine=HERE, **options):
    own = GpuProviders(*([] if own is None else [own]))
    return read_facts(shape, LoadOptions(gpu_providers=own, costs=store, **options), machine)


class TestNamedGpu:
    def one(self, own, device="cuda:1", **options):
        (found,) = read(own, device=device, **options).gpus
        return found

    def test_it_has_what_is_free_there(self):
        figures = self.one(FakeProvider(LAPTOP)).figures
        assert (figures.name, figures.total_bytes, figures.available_bytes) == ("a laptop's GPU", 8 * GIB, 6 * GIB)
        assert (figures.is_unified, figures.device_name) == (False, DeviceName("cuda", 1))

    def test_what_a_closed_model_gives_back_is_free_on_its_own_gpu_but_no_more_than_there_is(self):
        own = FakeProvider(LAPTOP)
        for number, freed, expected in ((1, GIB, 7 * GIB), (1, 4 * GIB, 8 * GIB), (0, GIB, 6 * GIB)):
            held = {DeviceName("cuda", number): freed}
            assert self.one(own, freed_device_bytes=held).figures.available_bytes == expected

    def test_a_context_of_this_process_counts_as_free(self):
        own = FakeProvider(LAPTOP)
        own.make_ready(LAPTOP)
        assert self.one(own).figures.available_bytes == 6 * GIB + CONTEXT_BYTES

    def test_one_that_shares_memory_is_not_opened(self):
        figures = self.one(FakeProvider(JETSON), "cuda").figures
        assert (figures.is_unified, figures.total_bytes) == (True, 7 * GIB)

    @pytest.mark.parametrize("op_profile", ["native", "portable"])
    def test_one_that_is_not_there_is_refused(self, op_profile):
        with pytest.raises(RuntimeUnavailable, match="no GPU of that number"):
            read(FakeProvider(LAPTOP), device="cuda", shape=make_shape(op_profile=op_profile))

    @pytest.mark.parametrize("others", [(), (LAPTOP,)])
    def test_an_old_one_is_refused_for_native_packages_alone(self, others):
        """ONNX Runtime's own provider may know it; its memory is not planned, and it is not opened for that."""
        own = FakeProvider(OLD, *others)
        with pytest.raises(RuntimeUnavailable, match="The GPU is too old"):
            read(own, device="cuda")
        assert self.one(own, "cuda", shape=make_shape(op_profile="portable")).figures is None


class TestAuto:
    @pytest.mark.parametrize("device", ["cpu", "webgpu"])
    def test_no_driver_is_asked_for_other_devices(self, store, device):
        assert read(CudaProvider(never, never), store, device=device).gpus == ()

    @pytest.mark.parametrize("changes", [{"op_profile": "portable"}, {"package_id": None}])
    def test_models_that_are_not_planned_there_ask_none(self, store, changes):
        assert read(CudaProvider(never, never), store, make_shape(**changes)).gpus == ()
        assert read(CudaProvider(never, never)).gpus == ()
        assert read(CudaProvider(never, never), store, machine=replace(HERE, name="another")).gpus == ()

    def test_no_driver_is_nothing_to_tell(self, store):
        facts = read(CudaProvider(never, never, driver="libno_such_driver.so.1"), store)
        assert (facts.gpus, facts.lost, facts.driver_bytes) == ((), (), 0)

    def test_a_driver_that_fails_leaves_what_was_measured_with_it(self, store, tmp_path):
        def library():
            raise RuntimeUnavailable("The driver for NVIDIA GPUs failed.")

        for own in (CudaProvider(library, never), FakeProvider(OLD)):
            facts = read(own, store)
            (lost,) = facts.lost
            assert lost.costs == {"f16": costs(5.0)}
            assert facts.cpu_costs == {"f16": costs(10.0)}
        store.save(gpu_key(LAPTOP), costs(1.0, steady=False))
        store.save({**CPU_KEY, "device": {"device": "webgpu"}}, costs(1.0))
        assert [lost.costs for lost in read(FakeProvider(OLD), store).lost] == [{}]

    def test_gpus_that_were_measured_are_opened(self, store):
        one, other = read(FakeProvider(OLD, LAPTOP, LARGE, broken=(2,)), store).gpus
        assert (one.gpu, one.costs, one.figures.available_bytes) == (LAPTOP, {"f16": costs(5.0)}, 6 * GIB)
        assert (other.gpu, other.costs, other.figures, other.error) == (LARGE, {}, None, None)
        (one,) = read(FakeProvider(LAPTOP, free=None), store).gpus
        assert one.figures is None
        assert "The GPU cannot be opened. GPU 1." in one.error

    @pytest.mark.parametrize(("ms", "is_opened"), [(9.9, True), (10.0, False), (30.0, False)])
    def test_a_gpu_that_was_measured_slower_than_the_cpu_is_not_opened(self, store, ms, is_opened):
        store.save(gpu_key(LAPTOP), costs(ms))
        (one,) = read(FakeProvider(LAPTOP, free=None), store).gpus
        assert (one.costs, one.error is not None) == ({"f16": costs(ms)}, is_opened)

    def test_a_gpu_that_is_faster_with_drafts_alone_is_opened(self, store):
        store.save(gpu_key(LAPTOP), costs(11.0, growth=0.01))
        (one,) = read(FakeProvider(LAPTOP), store).gpus
        assert one.figures is not None

    def test_costs_that_were_not_measured_alike_open_nothing(self, store):
        store.save(CPU_KEY, costs(10.0, depths=(100,)))
        (one,) = read(FakeProvider(LAPTOP, free=None), store).gpus
        assert (one.figures, one.error) == (None, None)

    @pytest.mark.parametrize(
        "changes",
        [
            {"device": {"driver": "12.4"}}, {"device": {"text": "another"}}, {"device": {"architecture": "sm_86"}},
            {"edge_rt": "0"}, {"cpu": "abacus"}, {"package_id": "y"}, {"graph": "draft.onnx"}, {"part": "deep"},
        ],
    )  # fmt: skip
    def test_measurements_of_something_else_do_not_count(self, tmp_path, changes):
        store = CostStore(tmp_path)
        store.save(CPU_KEY, costs(10.0))
        store.save(gpu_key(LAPTOP, **changes), costs(1.0))
        store.save(gpu_key(LAPTOP, capacity=1), costs(1.0, steady=False))
        assert read(FakeProvider(LAPTOP), store).gpus[0].costs == {}

    def test_another_number_of_threads_was_not_measured(self, store):
        assert read(FakeProvider(LAPTOP), store, threads=2).cpu_costs
        assert read(FakeProvider(LAPTOP), store, threads=3).cpu_costs == {}


class TestProcess:
    def test_the_driver_is_counted_once_it_was_asked(self, store):
        own = FakeProvider(LAPTOP)
        assert read(own, device="cpu").driver_bytes == 0
        assert read(own, store).driver_bytes == DRIVER_BYTES
        assert read(own, device="cpu").driver_bytes == DRIVER_BYTES
        elsewhere = read(own, machine=DEVICE)
        assert (elsewhere.is_here, elsewhere.driver_bytes) == (False, None)

    def test_what_a_process_holds_includes_the_driver_of_an_open_gpu(self):
        own = FakeProvider(LAPTOP)
        for is_open in (False, True):
            if is_open:
                own.make_ready(LAPTOP)
            facts = read(own, machine=None, device="cpu")
            assert facts.driver_bytes == (DRIVER_BYTES if is_open else 0)
            # Other memory of the process may come and go; between two lines it hardly does.
            held = max(facts.driver_bytes, resident_bytes())
            assert abs(facts.base_bytes + facts.driver_bytes - held) <= 8 << 20
            assert facts.context_bytes == (CONTEXT_BYTES if is_open else 0)

    @pytest.mark.parametrize("device", ["cuda:1", "auto"])
    def test_what_the_driver_takes_when_it_is_asked_is_counted_apart(self, store, device):
        own = TakingProvider(LAPTOP)
        asked = LoadOptions(device=device, gpu_providers=GpuProviders(own), costs=store)
        plan = plan_package(replace(SHAPE, package_id="x"), asked)
        # Other memory of the process may grow; the driver's is not in it, and a plan for a GPU counts that anyway.
        assert plan.base_bytes <= resident_bytes() - TakingProvider.TAKEN + (8 << 20)
        assert plan.sizes.driver == DRIVER_BYTES if device == "cuda:1" else plan.sizes.driver >= TakingProvider.TAKEN

    def test_what_it_held_before_its_first_model_is_taken_as_given(self):
        own = FakeProvider(LAPTOP)
        own.listed()
        facts = read(own, machine=None, device="cpu", base_bytes=100 << 20)
        assert (facts.base_bytes, facts.driver_bytes) == (100 << 20, DRIVER_BYTES)

    def test_a_budget_that_models_share_has_what_nobody_claimed_and_the_process(self):
        budget = Budget(GIB)
        budget.claim("another", 100 << 20, base_bytes=50 << 20, gpu_bytes=DRIVER_BYTES)
        facts = read(FakeProvider(), machine=None, device="cpu", memory=budget)
        assert facts.budget_bytes == GIB - (100 << 20)
        assert (facts.base_bytes, facts.driver_bytes) == (50 << 20, DRIVER_BYTES)

    def test_another_machine_has_what_it_says(self):
        facts = read(None, machine=DEVICE)
        assert (facts.machine, facts.base_bytes, facts.budget_bytes) == (DEVICE, None, None)


class TestOptions:
    @pytest.mark.parametrize("asked", [{"drafter": "folder"}, {"spec": "head"}, {"spec": "model:x"}])
    def test_a_checkpoint_has_nothing_that_drafts(self, asked):
        with pytest.raises(ConfigError, match="is for packages"):
            read(None, **asked)

    def test_a_package_runs_where_its_operators_are(self, native_package):
        with pytest.raises(ConfigError, match="packages of the op profile portable run there"):
            read_facts(open_package(native_package), LoadOptions(device="webgpu"))

    def test_layers_are_read_where_they_may_be_divided(self, native_package):
        package = open_package(native_package)
        asked = LoadOptions(device="cuda:1", gpu_providers=GpuProviders(FakeProvider(LAPTOP)))
        assert read_facts(package, asked).shape.layers is not None
        assert read_facts(package, LoadOptions(device="cpu")).shape.layers is None
