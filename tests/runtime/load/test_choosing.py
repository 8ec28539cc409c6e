"""What ``auto`` stands for: measured passes decide, a GPU that fails or has too little room leaves the CPU."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

import edge_rt
from edge_rt.cli.commands import profile, verify
from edge_rt.cli.commands.plan import choose_here
from edge_rt.cli.loading import tell_device
from edge_rt.cli.plan_speed import Speeds, measured_here
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.plan_report import plan_json, print_plan
from edge_rt.device.driver import Gpu, GpuReport
from edge_rt.device.provider import GpuProvider
from edge_rt.errors import ConfigError, MemoryBudgetExceeded, RuntimeUnavailable
from edge_rt.memory.choice import DeviceChoice
from edge_rt.memory.plan import Request, make_plan
from edge_rt.memory.shape import shape_of
from edge_rt.ort.session import pool_size
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.devices import choose_device, gpu_figures, measured_speeds
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import asked_again, device_of, options_on, plan_load, plan_package
from edge_rt.runtime.model import Model
from edge_rt.runtime.speculation.cost_model import CURVE_ROWS, CostStore, RowCosts
from edge_rt.system.json_files import JsonCache
from edge_rt.system.machine import cpu_model, usable_cpus
from edge_rt.version import VERSION
from tests.memory.shapes import DEVICE, make_shape

GIB = 1 << 30
SHAPE = make_shape()
OLD = Gpu(0, "an old GPU", 61, 8 * GIB, is_integrated=False)
LAPTOP = Gpu(1, "a laptop's GPU", 89, 8 * GIB, is_integrated=False)
LARGE = Gpu(2, "a large GPU", 90, 80 * GIB, is_integrated=False)
JETSON = Gpu(0, "Orin", 87, 7 * GIB, is_integrated=True)
CPU_KEY = {"package_id": "x", "edge_rt": VERSION, "cpu": cpu_model(), "threads": 2, "isa": None, "kv_format": "f16"}


class FakeLibrary:
    """A driver with some GPUs.

    Args:
        gpus: the GPUs.
        free: bytes that are free on each; None: it cannot be opened.
        broken: numbers of others that cannot be opened.
    """

    def __init__(self, gpus, free, broken):
        self._gpus, self._free, self._broken = gpus, free, broken

    def report(self):
        return GpuReport(13000, self._gpus)

    def free_bytes(self, number):
        if self._free is None or number in self._broken:
            raise RuntimeUnavailable("The GPU cannot be opened.", f"GPU {number}.", "Check it with nvidia-smi.")
        return self._free


class FakeProvider(GpuProvider):
    def __init__(self, *gpus, free=6 * GIB, broken=()):
        super().__init__(lambda: Path("library"), lambda gpu, report: {})
        self.fake = FakeLibrary(gpus, free, broken)

    @property
    def library(self):
        return self.fake


def costs(ms, depths=(64, 320), *, rows=CURVE_ROWS, growth=0.1, steady=True):
    """Passes over a row that take ``ms``, more rows a little more."""
    line = tuple(ms * (1 + growth * (count - 1)) for count in rows)
    return RowCosts(tuple(rows), tuple(depths), (line,) * len(depths), steady)


def gpu_key(gpu, **changes):
    """The key of costs that were measured on a GPU, as ``ComputeDevice.facts`` writes it."""
    device = {"device": gpu.device_name, "provider": "EdgeRtGpuExecutionProvider", "version": "0.1", "text": gpu.name}
    device |= GpuReport(13000, (gpu,)).facts(gpu) | changes.pop("device", {})
    return {**CPU_KEY, "device": device, **changes}


def choose(store, own, *, threads=2, **request):
    def plan_on(device):
        return make_plan(SHAPE, replace(DEVICE, gpu=gpu_figures(device, "native", own)), Request(**request))

    return choose_device(SHAPE, store, plan_on, threads=threads, own=own)


@pytest.fixture
def store(tmp_path):
    """Costs of both: the GPU takes half the time."""
    made = CostStore(tmp_path / "costs")
    made.save(CPU_KEY, costs(10.0))
    made.save(gpu_key(LAPTOP), costs(5.0))
    return made


def never(*asked):
    raise AssertionError(f"asked for {asked}")


class TestChoice:
    def test_the_faster_one_is_taken(self, store):
        own = FakeProvider(OLD, LAPTOP)
        assert choose(store, own).device == "cuda:1"
        assert choose(store, own).note is None
        # Lower costs of the CPU replace those above.
        store.save({**CPU_KEY, "capacity": 9}, costs(5.1))
        assert (choose(store, own).device, choose(store, own).note) == ("cpu", None)
        store.save({**CPU_KEY, "capacity": 9}, costs(5.3))
        assert choose(store, own).device == "cuda:1"

    def test_the_fastest_of_several(self, store):
        store.save(gpu_key(LARGE), costs(2.0))
        assert choose(store, FakeProvider(OLD, LAPTOP, LARGE)).device == "cuda:2"
        # The rule is about decoding: it is the speed that counts, not the order of the driver.
        store.save(gpu_key(LARGE), costs(7.0))
        assert choose(store, FakeProvider(OLD, LAPTOP, LARGE)).device == "cuda:1"

    def test_what_was_not_measured_is_not_guessed(self, tmp_path, store):
        own = FakeProvider(OLD, LAPTOP)
        nothing, only_gpu = CostStore(tmp_path / "none"), CostStore(tmp_path / "gpu")
        only_gpu.save(gpu_key(LAPTOP), costs(5.0))
        found = choose_device(SHAPE, nothing, never, threads=2, own=own)
        assert found.device == "cpu"
        assert not found.has_failed
        assert "a laptop's GPU is not used" in found.note
        assert "edge-rt bench -m MODEL --calibrate --device cuda:1 measures it." in found.note
        assert "\n" not in found.note
        found = choose(only_gpu, own)
        assert found.device == "cpu"
        assert "edge-rt bench -m MODEL --calibrate --device cpu measures it." in found.note
        # Another number of threads was not measured either.
        assert choose(store, own, threads=3) == found
        only_gpu.save({**CPU_KEY, "kv_format": "int4"}, costs(9.0))
        note = choose(only_gpu, own).note
        assert "measured with other caches" in note
        assert "edge-rt bench -m MODEL --calibrate --device cpu, and then cuda:1, measures both alike." in note

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
        assert "is not known" in choose(store, FakeProvider(LAPTOP)).note

    def test_no_driver_is_no_error_and_nothing_to_tell(self, store):
        no_driver = GpuProvider(never, never, driver="libno_such_driver.so.1")
        assert choose_device(SHAPE, store, never, threads=2, own=no_driver) == DeviceChoice("cpu")

    def test_a_driver_that_fails_is_told_where_its_gpu_was_faster(self, store, tmp_path):
        def library():
            raise RuntimeUnavailable("The driver for NVIDIA GPUs failed.")

        def chosen(own):
            return choose_device(SHAPE, store, lambda device: make_plan(SHAPE, DEVICE, Request()), threads=2, own=own)

        broken = GpuProvider(library, lambda gpu, report: {})
        found = chosen(broken)
        assert found.replaces_gpu
        assert found.note == "The CPU computes, because the GPU failed: The driver for NVIDIA GPUs failed."
        assert chosen(FakeProvider(OLD)).replaces_gpu
        # A GPU that would not have been taken is not missed.
        store.save(gpu_key(LAPTOP), costs(9.9))
        assert chosen(broken) == DeviceChoice("cpu")
        JsonCache(tmp_path / "costs").remove(gpu_key(LAPTOP))
        store.save({**CPU_KEY, "device": {"device": "webgpu"}}, costs(1.0))
        assert chosen(broken) == DeviceChoice("cpu")

    @pytest.mark.parametrize("changes", [{"op_profile": "portable"}, {"package_id": None}])
    def test_models_that_do_not_run_there_ask_no_driver(self, store, changes):
        shape = replace(SHAPE, **changes)
        assert choose_device(shape, store, never, threads=2, own=None).device == "cpu"
        assert choose_device(SHAPE, None, never, threads=2, own=None).device == "cpu"

    def test_too_little_room_on_the_gpu_leaves_the_cpu(self, store):
        # Weights and cache fit beside the context of CUDA only with less.
        own = FakeProvider(LAPTOP, free=800 << 20)
        found = choose(store, own)
        made = make_plan(SHAPE, replace(DEVICE, gpu=gpu_figures("cuda:1", "native", own)), Request())
        assert made.fits
        assert made.given_up
        assert (found.device, found.has_failed) == ("cpu", False)
        assert "a laptop's GPU is faster (" in found.note
        assert "--device cuda:1 runs there with less" in found.note

    def test_what_does_not_run_there_at_all_is_not_advised(self, store):
        found = choose(store, FakeProvider(LAPTOP, free=600 << 20))
        assert found.device == "cpu"
        assert "the model does not fit its memory: it needs at least" in found.note
        assert "the budget is 600.0 MiB" in found.note
        # The GPU has plenty, but the driver is more than the process may take.
        found = choose(store, FakeProvider(LAPTOP), budget_bytes=300 << 20)
        assert found.device == "cpu"
        assert "does not fit the memory of the process: it needs at least" in found.note
        assert "the budget is 300.0 MiB" in found.note

    def test_a_gpu_that_fits_with_less_is_taken_where_the_cpu_does_not_fit(self, store):
        large = replace(SHAPE, weights_bytes=4800 << 20, largest_tensor_bytes=300 << 20, num_layers=32)
        machine, own = (
            replace(DEVICE, available_bytes=4 * GIB, total_bytes=8 * GIB),
            FakeProvider(LAPTOP, free=5400 << 20),
        )

        def plan_on(device):
            return make_plan(large, replace(machine, gpu=gpu_figures(device, "native", own)), Request())

        assert not plan_on("cpu").fits
        assert plan_on("cuda:1").fits
        assert plan_on("cuda:1").given_up
        assert choose_device(large, store, plan_on, threads=2, own=own) == DeviceChoice("cuda:1")

    @pytest.mark.parametrize(("less_on_gpu", "expected"), [({}, "cuda:1"), ({"ctx": 4096}, "cpu")])
    def test_what_the_cpu_gives_up_as_well_is_no_reason(self, store, less_on_gpu, expected):
        def plan_on(device):
            plan = make_plan(SHAPE, replace(DEVICE, gpu=gpu_figures(device, "native", own)), Request())
            less = {} if device == "cpu" else less_on_gpu
            return replace(plan, given_up=("something",), choice=replace(plan.choice, **less))

        own = FakeProvider(LAPTOP)
        assert choose_device(SHAPE, store, plan_on, threads=2, own=own).device == expected

    def test_a_jetson_has_less_room_in_the_same_budget(self, store):
        own = FakeProvider(JETSON)
        store.save(gpu_key(JETSON), costs(5.0))
        short = make_plan(SHAPE, DEVICE, Request(spec="off", prefill_chunk=64)).minimum_bytes
        assert choose(store, own, spec="off", prefill_chunk=64, budget_bytes=short).device == "cpu"
        assert choose(store, own, spec="off").device == "cuda"

    def test_a_gpu_that_cannot_be_opened_is_told(self, store):
        found = choose(store, FakeProvider(LAPTOP, free=None))
        assert (found.device, found.has_failed) == ("cpu", True)
        assert "The GPU cannot be opened. GPU 1." in found.note

    def test_the_next_gpu_takes_the_place_of_one_that_fails(self, store):
        store.save(gpu_key(LARGE), costs(2.0))
        found = choose(store, FakeProvider(LAPTOP, LARGE, broken=(2,)))
        assert (found.device, found.has_failed, found.replaces_gpu) == ("cuda:1", True, False)
        assert found.note.startswith("The GPU cuda:1 computes, because cuda:2 failed: The GPU cannot be opened.")
        found = choose(store, FakeProvider(LAPTOP, LARGE, free=None))
        assert (found.device, found.replaces_gpu) == ("cpu", True)
        assert found.note.startswith("The CPU computes, because cuda:2 failed: ")
        assert " cuda:1 failed, too: The GPU cannot be opened. GPU 1." in found.note

    def test_of_several_gpus_those_that_are_not_used_are_told(self, store):
        found = choose(store, FakeProvider(LAPTOP, LARGE))
        assert found.device == "cuda:1"
        assert found.note.startswith("a large GPU is not used: its speed with this model is not known.")
        # An equal one would be no faster.
        assert choose(store, FakeProvider(LAPTOP, replace(LAPTOP, number=2))) == DeviceChoice("cuda:1")

    def test_wrong_options_are_refused_whatever_computes(self, store):
        with pytest.raises(ConfigError, match="context is out of range"):
            choose(store, FakeProvider(LAPTOP), ctx=1)


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
    for choice in (DeviceChoice("cpu"), DeviceChoice("cpu", "A."), DeviceChoice("cpu", "B.", has_failed=True)):
        tell_device(terminal, choice)
    assert err.getvalue() == ("" if is_quiet else "A.\n") + "warning: B.\n"


class TestLoads:
    @pytest.fixture
    def package(self, native_package):
        return open_package(native_package)

    @pytest.fixture
    def asked(self, package, tmp_path):
        """Options of a load where both are measured, and the GPU is faster."""
        store = CostStore(tmp_path / "costs")
        here = {"package_id": package.id, "threads": pool_size() or usable_cpus()}
        store.save({**CPU_KEY, **here}, costs(10.0))
        store.save(gpu_key(LAPTOP, **here), costs(5.0))
        return LoadOptions(ctx=256, spec="off", costs=store, gpu_provider=FakeProvider(LAPTOP))

    def test_plan_and_load_agree(self, package, asked):
        assert device_of(package, asked).device == "cuda:1"
        plan = plan_package(package, asked)
        assert plan.device.gpu.device_name == "cuda:1"
        done = plan_load(package, asked)
        assert (done.options.device, done.plan.choice) == ("cuda:1", plan.choice)
        assert plan_load(package, asked.as_planned(plan)).options.device == "cuda:1"
        shown, machine, _ = choose_here(
            plan.shape, replace(DEVICE, threads=2), Request(), asked.costs, asked.gpu_provider
        )
        if (pool_size() or usable_cpus()) == 2:
            assert (shown.device, machine.gpu.device_name) == ("cuda:1", "cuda:1")
        for named in ("cpu", "cuda:1"):
            assert device_of(package, asked.but(device=named)).device == named

    def test_a_named_gpu_is_not_chosen_but_refused(self, package, asked):
        with pytest.raises(RuntimeUnavailable, match="no GPU of that number"):
            plan_package(package, asked.but(device="cuda"))

    def test_a_budget_of_the_gpu_is_for_the_gpu(self, package, asked):
        assert plan_package(package, asked.but(device_memory=GIB)).budget.gpu == GIB
        with pytest.raises(ConfigError, match=r"planned for the CPU\. a laptop's GPU is faster .* not fit its memory"):
            plan_package(package, asked.but(device_memory="400MiB"))

    def test_a_gpu_with_room_for_some_layers_is_told_by_plan_and_load_alike(self, package, asked):
        pinned = {"ctx": 256, "kv": "f16", "spec": "off", "prefill_chunk": 64}
        whole = plan_package(package, asked.but(**pinned, device_memory=GIB))
        asked = asked.but(**pinned, gpu_provider=FakeProvider(LAPTOP, free=whole.needs.gpu - 1))
        note = device_of(package, asked).note
        assert note.endswith("has no room for all that the CPU keeps; --device cuda:1 runs there with less.")
        if (pool_size() or usable_cpus()) == 2:
            shape, machine = shape_of(package.manifest, package.id), replace(DEVICE, threads=2)
            shown, _, request = choose_here(shape, machine, Request(**pinned), asked.costs, asked.gpu_provider, package)
            assert shown.note == note
            assert request.device_choice == shown

    def test_a_budget_of_a_gpu_that_fails_while_it_is_planned_is_no_error(self, package, asked):
        """The failure is told instead, wherever a device is chosen."""
        broken = asked.but(device_memory="800MiB", gpu_provider=FakeProvider(LAPTOP, free=None))
        assert plan_package(package, broken).device.gpu is None
        assert plan_load(package, broken).options.device_memory is None
        with Model(package, broken) as model:
            assert "The CPU computes, because cuda:1 failed: The GPU cannot be opened." in model.device_choice.note
        terminal = Terminal(io.StringIO(), err := io.StringIO())
        assert profile._plan(terminal, package, broken, DEVICE)[0] == "cpu"
        once = verify._on_one_device(terminal, package, broken, "f16")
        assert (once.device, once.device_memory) == ("cpu", None)
        assert err.getvalue().count("warning: The CPU computes") == 2
        shape, request = shape_of(package.manifest, package.id), Request(device_budget_bytes=800 << 20)
        machine = replace(DEVICE, threads=pool_size() or usable_cpus())
        shown, _, planned = choose_here(shape, machine, request, asked.costs, broken.gpu_provider)
        assert shown.replaces_gpu
        assert planned.device_budget_bytes is None

    def test_a_plan_keeps_what_is_to_be_said_of_its_device(self, package, asked):
        """As in a chat, whose /ctx and /model load what was planned before."""
        unmeasured = asked.but(gpu_provider=FakeProvider(LARGE))
        broken = asked.but(gpu_provider=FakeProvider(LAPTOP, free=None))
        for options, said in ((unmeasured, "a large GPU is not used"), (broken, "The CPU computes, because cuda:1")):
            with Model(package, options.as_planned(plan_package(package, options))) as model:
                assert model.device_choice.note.startswith(said)
                assert model.device_choice == device_of(package, options)
            # As the plan of a model that was loaded without one does, which a chat may load again.
            with Model(package, options) as model:
                assert model.plan.request.device_choice == model.device_choice

    @pytest.mark.parametrize("device", ["webgpu", "webgpu:1", "cuda", "cpu"])
    def test_a_plan_that_counts_a_run_on_the_cpu_is_for_its_device_all_the_same(self, small_package, device):
        package, own = open_package(small_package), FakeProvider(JETSON)
        plan = plan_package(package, LoadOptions(device=device, gpu_provider=own))
        assert plan.device.gpu is None
        assert device_of(package, LoadOptions(plan=plan, gpu_provider=own)) == DeviceChoice(device, is_named=True)
        assert plan_load(package, LoadOptions(plan=plan, gpu_provider=own)).options.device == device

    def test_a_plan_for_a_device_that_was_named_is_not_carried_out_elsewhere(self, package, asked):
        plan = plan_package(package, asked.but(device="cuda:1"))
        with pytest.raises(RuntimeUnavailable):
            Model(package, asked.as_planned(plan))

    def test_a_load_tries_every_gpu_that_is_faster(self, package, asked):
        asked.costs.save(gpu_key(LARGE, package_id=package.id, threads=pool_size() or usable_cpus()), costs(2.0))
        tried = []
        options = asked.but(gpu_provider=FakeProvider(LAPTOP, LARGE), on_plan=tried.append)
        for again in (options, options.as_planned(plan_package(package, options))):
            with Model(package, again) as model:
                assert model.device_choice.note.startswith("The CPU computes, because cuda:2 failed: ")
            assert [plan.device.gpu and plan.device.gpu.device_name for plan in tried] == ["cuda:2", "cuda:1", None]
            tried.clear()

    def test_commands_that_run_several_models_decide_once(self, package, asked):
        terminal = Terminal(io.StringIO(), err := io.StringIO())
        machine = replace(DEVICE, base_bytes=200 << 20)
        device, plan = profile._plan(terminal, package, asked, machine)
        assert (device, plan.device.gpu.name) == ("cuda:1", "a laptop's GPU")
        assert verify._on_one_device(terminal, package, asked, "f16").device == "cuda:1"
        assert err.getvalue() == ""
        broken = asked.but(gpu_provider=FakeProvider(LAPTOP, free=None))
        device, plan = profile._plan(terminal, package, broken, machine)
        assert (device, plan.device.gpu) == ("cpu", None)
        assert err.getvalue().startswith("warning: The CPU computes")

    @pytest.mark.parametrize("is_planned", [False, True])
    def test_a_gpu_that_fails_at_load_is_told_and_the_cpu_computes(self, package, asked, is_planned):
        """The driver that is made up finds GPUs, but ONNX Runtime has no provider for them."""
        options = asked.as_planned(plan_package(package, asked)) if is_planned else asked
        with Model(package, options) as model:
            assert model.device is None
            assert model.plan.device.gpu is None
            assert model.context_tokens == 256
            assert model.speculation.mode == "off"
            choice, facts = model.device_choice, model.describe()
            assert model.generate("Hello", max_tokens=2, temperature=0.0).token_ids
        assert (choice.device, choice.has_failed) == ("cpu", True)
        assert "The CPU computes, because cuda:1 failed: " in choice.note
        assert (facts["device"], facts["device_note"]) == ("cpu", choice.note)
        with pytest.raises(RuntimeUnavailable):
            Model(package, asked.but(device="cuda:1"))

    def test_the_share_of_a_budget_is_given_back_by_the_gpu_that_failed(self, package, asked):
        budget = edge_rt.Budget(3 * GIB)
        with Model(package, asked.but(memory=budget)) as model:
            assert model.device_choice.has_failed
            assert len(budget.claims) == 1
        assert budget.claims == ()

    def test_other_errors_are_those_of_the_cpu(self, package, asked):
        with pytest.raises(MemoryBudgetExceeded, match="does not fit"):
            Model(package, asked.but(memory="1MiB"))

    def test_a_plan_for_the_gpu_is_made_again_for_the_cpu(self, package, asked):
        wanted = asked.but(kv="int8", prefill_chunk=64, memory=3 * GIB, device_memory=GIB)
        made = plan_package(package, wanted)
        failed = DeviceChoice("cpu", "It failed.", has_failed=True)
        again = plan_package(package, options_on(asked_again(wanted.as_planned(made)), failed))
        assert again.device.gpu is None
        assert (again.choice.kv_format, again.choice.prefill_chunk, again.choice.ctx) == ("int8", 64, 256)
        assert again.budget_bytes == 3 * GIB

    def test_the_speed_of_a_gpu_is_shown_as_measured(self, package, asked):
        plan = plan_package(package, asked)
        found = measured_here(plan.shape, plan.device, asked.costs, asked.gpu_provider)
        assert found == {"f16": costs(5.0)}
        for measured, said in ((found, "+-30 %, measured here"), ({}, "of a typical GPU, not measured")):
            terminal = Terminal(out := io.StringIO(), io.StringIO())
            speeds = Speeds(plan.shape, plan.device, measured)
            print_plan(terminal, plan, speeds, (), verb=["edge-rt", "generate"], named=[], is_here=True)
            assert f"tokens per second ({said})" in out.getvalue()
            assert ("(+-30 %, measured here with another cache)" in out.getvalue()) == bool(measured)
            uncertainty = plan_json(plan, speeds)["speed_uncertainty"]
            assert (uncertainty is not None) == bool(measured)
        assert Speeds(plan.shape, plan.device, found).rate(plan.choice).plain == pytest.approx(200)
        other = replace(plan.device, gpu=replace(plan.device.gpu, device_name=None))
        assert measured_here(plan.shape, other, asked.costs, asked.gpu_provider) == {}
