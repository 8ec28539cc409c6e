"""Plans for GPUs, against arithmetic written out by hand for SmolLM2-135M's shape."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import ConfigError, MemoryBudgetExceeded
from edge_rt.export import export_model
from edge_rt.memory import gpu_terms
from edge_rt.memory.advice import require_fit
from edge_rt.memory.device import MACHINE, preset
from edge_rt.memory.figures import Amounts, Choice, Device, GpuFigures
from edge_rt.memory.gpu_terms import attention_bytes, gpu_activations, gpu_pieces, staging_bytes
from edge_rt.memory.plan import make_plan
from edge_rt.memory.request import Request
from edge_rt.memory.shape import shape_of
from edge_rt.memory.sizes import sizes_of
from edge_rt.memory.speed import pass_seconds
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.io_binding_gpu import MOST_RECORDED
from edge_rt.runtime.forward.runner import MAX_KEPT_SHAPES
from tests.helpers.examples import share_of
from tests.helpers.gguf_factory import write_llama_gguf
from tests.memory.shapes import DEVICE, MIB, make_shape, request_of, requests, shapes, windows_of

GPU = GpuFigures("a GPU", 4 << 30, 3 << 30, 100e9, 5e-4, ((1, 1.0), (8, 1.1), (24, 1.3)))
OWN = replace(DEVICE, gpu=GPU)
SHARED = replace(DEVICE, gpu=replace(GPU, is_unified=True))
CHOICE = Choice(2048, "f16", "auto", 23, 256, 8192, 8192, 24)
ON_GPU = {
    "gpu_context": 512 * MIB,
    "weights": 98_799_616,
    # rows x layers x (keys and values of 3 heads x 64 x 2 bytes)
    # of each layer 2048 x 768 bytes in a page of the driver's
    "kv_cache": 30 * (2 << 20),
    # rows x (logits of 4 bytes, 128 bytes of the most likely tokens)
    "logits": 24 * (4 * 49_152 + 128),
    # A row: 4 x (2 x 576 + 960 + 576 + 576 + 2 x 1536) and two rounded copies of 48 blocks of 48 bytes: 29,952 bytes.
    # 256 rows, and 2,304 queries x (256 + 8 + 256) + 1,024: 8,866,816; 16 rows, whose queries have 9 spans, need less.
    # The map of rows, parents and tree: 4 x (2048 + 2 x (4 + 256)) = 10,272. Parts of the most likely tokens: 24 x 12 x
    # 524 = 150,912. A 16th more, 256 bytes for each of 32 tensors, rounded up to 256.
    "activations": 9_600_512,
}
IN_PROCESS = {
    # 77.75 MiB before a model is loaded, 128 MiB for the driver
    "runtime": 81_526_784 + 134_217_728,
    "tokenizer": 8_126_464 + 48 * 65_536 + 5 * 1_563_270 + 245 * 4096 + 49_152 + 1_048_576,
    "session": 11_272_192 + 30 * 16_384 + 160 * 2048,
    "logits": 24 * (4 * 49_152 + 128),
    # 72 shapes of recorded passes x (4 KiB, a map of 2048 rows, tree and tokens of 16 rows)
    "activations": 72 * (4096 + 4 * 2048 + 8 * 16),
    "sampling": 3_145_728 + 54 * 49_152,
    "drafters": 163_840 + 128 * 8192 + 192 * 8192,
}


def terms(plan):
    on_host = {term.name: term.bytes for term in plan.terms if term.bytes}
    return on_host, {term.name: term.device_bytes for term in plan.terms if term.device_bytes}


def test_a_gpu_of_its_own_memory_has_a_column_of_its_own():
    plan = make_plan(make_shape(), OWN, Request(ctx=2048))
    assert plan.choice == CHOICE
    on_host, on_gpu = terms(plan)
    assert on_gpu == ON_GPU
    assert (plan.needs.gpu, plan.device_bytes) == (sum(ON_GPU.values()), sum(ON_GPU.values()))
    # 48 MB are 45 MiB, in pages 60.
    text = next(term.text for term in plan.terms if term.name == "kv_cache")
    assert text == "2048 rows x 30 layers x 768 B (f16); 15.0 MiB more in whole pages of the GPU's driver"
    small = make_plan(make_shape(), replace(OWN, gpu=replace(GPU, page_bytes=0)), Request(ctx=2048))
    assert next(term.text for term in small.terms if term.name == "kv_cache") == text.partition(";")[0]
    # Reading 1.5 MB of tokenizer takes more than what is held later; weights are read in pieces of 4 MiB.
    held = sum(IN_PROCESS.values())
    loaded = sum(IN_PROCESS[name] for name in ("runtime", "tokenizer", "session"))
    reading = IN_PROCESS["runtime"] + IN_PROCESS["session"] + 10_485_760 + 33 * 1_563_270
    assert plan.sizes.packing == loaded + 4 * MIB < held < reading
    assert on_host == {**IN_PROCESS, "tokenizer": IN_PROCESS["tokenizer"] + reading - held}
    assert plan.needs.host == plan.total_bytes == reading
    assert plan.budget == Amounts(4 << 30, 3 << 30)


@pytest.mark.parametrize("device", [OWN, SHARED])
def test_a_driver_is_counted_as_it_is_asked_for(device):
    asked = Request(ctx=2048, kv="f16")
    first, second = (make_plan(make_shape(), device, one) for one in (asked, replace(asked, driver_bytes=0)))
    assert first.choice == second.choice
    assert first.device_bytes == second.device_bytes
    assert first.total_bytes - second.total_bytes == first.regimes.load - second.regimes.load == 128 * MIB
    assert first.base_bytes == second.base_bytes == second.runtime_bytes == first.runtime_bytes - 128 * MIB


@pytest.mark.parametrize("weights", [None, "nested8"])
def test_the_largest_tensor_of_a_package_is_found(native_package, weights, tmp_path):
    if weights is not None:
        types = dict.fromkeys(("weight_type", "embedding_type", "output_type"), "F32")
        write_llama_gguf(tmp_path / "m.gguf", **types)
        native_package = tmp_path / "package"
        export_model(tmp_path / "m.gguf", native_package, profile="native", weights=weights, calibration=None)
    package = open_package(native_package)
    shape = shape_of(package.manifest, package.id)
    (graph,) = package.manifest.graphs
    assert shape.largest_tensor_bytes == max(place.length for place in package.tensors[graph].values())


def test_unified_memory_is_counted_once():
    plan = make_plan(make_shape(), SHARED, Request(ctx=2048))
    on_host, on_gpu = terms(plan)
    assert (on_host, on_gpu) == (IN_PROCESS, ON_GPU)
    # The mapped file is not counted beside its copy, and there is one budget.
    assert plan.needs == Amounts(sum(IN_PROCESS.values()) + sum(ON_GPU.values()), heap=sum(ON_GPU.values()))
    assert plan.budget == Amounts(4 << 30, heap=4 << 30)
    assert plan.device_budget_bytes is None
    assert plan.regimes.decode == plan.total_bytes


def test_weights_that_are_read_where_they_are_mapped_are_the_files():
    shape, imports = make_shape(), replace(SHARED, gpu=replace(SHARED.gpu, imports=True))
    plan, copying = (make_plan(shape, device, Request(ctx=2048)) for device in (imports, SHARED))
    on_host, on_gpu = terms(plan)
    assert on_gpu == {name: size for name, size in ON_GPU.items() if name != "weights"}
    assert on_host == {**IN_PROCESS, "weights": 98_799_616}
    assert sum(term.bytes for term in plan.terms if term.kind == "file") == 98_799_616
    # As much as their copy would be, should the driver refuse them.
    assert plan.needs == copying.needs
    assert plan.regimes.decode == copying.regimes.decode
    assert "read in place by the GPU" in next(term.text for term in plan.terms if term.name == "weights")


@pytest.mark.parametrize("imports", [False, True])
def test_what_lies_in_shared_memory_is_within_the_heap_of_its_driver(imports):
    """Also weights that are read in place: a driver may refuse that, and then they are copied."""
    held, together = sum(ON_GPU.values()), sum(IN_PROCESS.values()) + sum(ON_GPU.values())

    def plan(heap, host=4 << 30, **settings):
        gpu = replace(SHARED.gpu, imports=imports, total_bytes=heap)
        request = Request(budget_bytes=host, ctx=2048, kv="f16", spec="auto", prefill_chunk=256, **settings)
        return make_plan(make_shape(), replace(SHARED, gpu=gpu), request)

    pinned = {"draft_max": 23}
    assert plan(held, **pinned).fits
    assert plan(held, together, **pinned).needs == Amounts(together, heap=held)
    # One byte too little of either; the smallest tables need less of the process, and no other setting less here.
    least = plan(held - 1, **pinned)
    assert (least.fits, plan(held, least.minimum.host - 1, **pinned).fits) == (False, False)
    assert least.minimum.heap == held
    said = r"memory of the GPU.*its driver allows .*\(gpu_context 512"
    with pytest.raises(MemoryBudgetExceeded, match=said) as refused:
        require_fit(plan(held - MIB, **pinned))
    assert "weights 94.2 MiB" in str(refused.value)
    assert "--memory" not in refused.value.action.replace("--memory 4GiB ", "")
    # Where settings are open, what is too much there is given up.
    less = make_plan(make_shape(), replace(SHARED, gpu=replace(SHARED.gpu, total_bytes=held)), Request(ctx=8192))
    assert (less.fits, less.choice.ctx, less.choice.kv_format) == (True, 8192, "int4")
    shown = less.rows()[-1][-1]
    assert f"allows {less.budget.heap / MIB:.1f} MiB, " in shown


def test_the_orin_nano_by_hand():
    plan = make_plan(make_shape(), preset("jetson-orin-nano-8gb"), Request(ctx=2048))
    assert plan.budget == Amounts(5_200_000_000, heap=7_772_000_000)
    assert plan.total_bytes == sum(IN_PROCESS.values()) + sum(ON_GPU.values()) == 976_133_790
    # 0.82 of 102 GB/s; weights and half the cache, and 2 ms.
    seconds = 2e-3 + (96_000_000 + 1024 * 30 * 768) / (102e9 * 0.82)
    assert pass_seconds(plan.shape, plan.device, plan.choice) == pytest.approx(seconds)


def test_what_a_session_keeps_is_what_the_plan_counts():
    assert (gpu_terms.RECORDED_ROWS, gpu_terms.RECORDED_SHAPES) == (MOST_RECORDED, MAX_KEPT_SHAPES)


def test_a_model_that_a_preset_holds_and_one_that_it_does_not():
    # 8 billion weights of 4.5 bits; 32 layers, 8 heads of 128 for keys and values.
    shape = make_shape(
        num_layers=32, hidden_size=4096, intermediate_size=14_336, num_heads=32, num_kv_heads=8, head_dim=128,
        vocab_size=128_256, weights_bytes=4_500_000_000, read_bytes=4_500_000_000, tokenizer_bytes=9_000_000,
    )  # fmt: skip
    assert not make_plan(shape, preset("jetson-orin-nano-8gb"), Request()).fits
    assert make_plan(shape, preset("jetson-orin-nx-16gb"), Request()).fits
    assert not make_plan(shape, preset("rtx3050-laptop-4gb"), Request()).fits
    plan = make_plan(shape, preset("rtx4060-laptop-8gb"), Request())
    assert plan.fits
    assert (plan.choice.ctx, plan.choice.kv_format) == (8192, "f16")
    # Twice the cache in f16 (2 GiB) does not fit beside weights, context and passes; one of 8 bits does: 4 scales of 2
    # bytes for each 128 codes.
    shape = replace(shape, model=replace(shape.model, context_length=16_384))
    plan = make_plan(shape, preset("rtx4060-laptop-8gb"), Request(ctx=16_384))
    assert plan.fits
    assert (plan.choice.ctx, plan.choice.kv_format) == (16_384, "int8")
    assert terms(plan)[1]["kv_cache"] == 16_384 * 32 * 2 * 8 * (128 + 4 * 2)


def test_cache_goes_before_context_where_only_the_gpu_is_short():
    free = make_plan(make_shape(), OWN, Request())
    tight = make_plan(make_shape(), OWN, Request(device_budget_bytes=free.needs.gpu - 100 * MIB))
    assert tight.fits
    assert (tight.choice.ctx, free.choice.ctx) == (8192, 8192)
    assert tight.needs.gpu <= free.needs.gpu - 100 * MIB
    assert tight.choice.kv_format != free.choice.kv_format
    assert any("KV cache" in text for text in tight.given_up)


@given(st.data(), shapes(), st.integers(1, 8 << 10), st.integers(1, 8 << 10))
@settings(max_examples=share_of(40))
def test_sums_budgets_and_alternatives_hold_on_both_sides(data, shape, host, own):
    if shape.op_profile != "native":
        return
    asked = replace(data.draw(requests(shape)), budget_bytes=host * MIB, device_budget_bytes=own * MIB)
    plan = make_plan(shape, OWN, asked)
    assert plan.needs == Amounts(sum(term.bytes for term in plan.terms), sum(term.device_bytes for term in plan.terms))
    assert plan.fits == (plan.needs.host <= host * MIB and plan.needs.gpu <= own * MIB)
    least = replace(asked, budget_bytes=plan.minimum.host, device_budget_bytes=plan.minimum.gpu)
    assert make_plan(shape, OWN, least).fits
    assert not make_plan(shape, OWN, replace(least, device_budget_bytes=plan.minimum.gpu - 1)).fits
    for other in plan.alternatives:
        again = make_plan(shape, OWN, request_of(other.flags, plan.request))
        assert again.fits
        assert (again.choice, again.needs) == (other.choice, Amounts(other.total_bytes, other.device_bytes))


def test_a_refusal_names_the_budget_that_is_short():
    shape = make_shape()
    with pytest.raises(MemoryBudgetExceeded) as of_gpu:
        require_fit(make_plan(shape, OWN, Request(device_budget_bytes=600 * MIB, ctx=8192)))
    assert "of the GPU" in str(of_gpu.value)
    assert "600.0 MiB" in str(of_gpu.value)
    assert "gpu_context 512.0 MiB" in str(of_gpu.value)
    assert "--device-memory" in of_gpu.value.action
    assert "--memory" not in of_gpu.value.action.replace("--device-memory", "")
    with pytest.raises(MemoryBudgetExceeded) as of_host:
        require_fit(make_plan(shape, OWN, Request(budget_bytes=100 * MIB)))
    assert "of the GPU." not in str(of_host.value)
    assert "--memory" in of_host.value.action
    assert "--device-memory" not in of_host.value.action


def test_where_no_setting_helps_the_refusal_says_so():
    shape = make_shape(weights_bytes=5 << 30)
    with pytest.raises(MemoryBudgetExceeded, match="smaller model"):
        require_fit(make_plan(shape, OWN, Request()))


@pytest.mark.parametrize(
    ("device", "profile", "what", "way"),
    [
        (DEVICE, "native", "for native packages", "or plan for a machine whose GPU has some"),
        (replace(DEVICE, name=MACHINE), "native", "for native packages", r"or name the GPU\."),
        (OWN, "portable", "for native packages", "or choose a native package"),
        (SHARED, "native", "no memory", "one budget for both"),
    ],
)
def test_a_budget_of_device_memory_is_refused_where_there_is_none(device, profile, what, way):
    with pytest.raises(ConfigError, match=f"{what}.*{way}"):
        make_plan(make_shape(op_profile=profile, kv_formats=("f32",)), device, Request(device_budget_bytes=MIB))


def test_a_portable_package_is_planned_for_the_cpu():
    shape = make_shape(op_profile="portable", kv_formats=("f32",))
    assert make_plan(shape, OWN, Request()) == make_plan(shape, DEVICE, Request())


def test_few_rows_keep_a_state_for_every_span():
    # 16 rows x 9 heads x (a query of 256 bytes + 33 spans x 264), one row more and there is one span
    assert attention_bytes(make_shape(), 16, 8192) == 144 * (256 + 33 * 264) + 1024
    assert attention_bytes(make_shape(), 17, 8192) == 153 * (256 + 264) + 1024


def test_passes_on_a_gpu_take_more_with_more_rows_and_context():
    small, large = (gpu_activations(make_shape(), replace(CHOICE, prefill_chunk=chunk)) for chunk in (64, 256))
    assert small < large
    assert staging_bytes(make_shape(), CHOICE, 0) < staging_bytes(make_shape(), replace(CHOICE, ctx=4096), 0)
    windowed = make_shape(layer_windows=windows_of(512, 15))
    assert staging_bytes(windowed, CHOICE, 0) - staging_bytes(make_shape(), CHOICE, 0) == 72 * 4 * 2048


def test_what_kernels_are_given_lies_where_the_driver_does_not_keep_it():
    shape = make_shape()
    assert gpu_pieces(shape, CHOICE, 0) == 0
    # 30 layers x 4,608 bytes, and 4 x (2048 + 2 x 256) of what is uploaded, in chunks of 64 KiB: 148,480 in three.
    assert gpu_pieces(shape, CHOICE, 65_536) == 3 * 65_536
    assert gpu_pieces(shape, replace(CHOICE, ctx=16_384), 65_536) == 4 * 65_536
    assert staging_bytes(shape, CHOICE, 65_536) - staging_bytes(shape, CHOICE, 0) == 72 * 30 * 6144
    none = replace(OWN, gpu=replace(GPU, page_bytes=0))
    assert sizes_of(shape, none, CHOICE, Request()).gpu.kv_cache == 30 * 2048 * 768


def test_graphs_of_a_package_with_exits_share_weights_and_the_memory_of_passes():
    shape = make_shape(segments=3, is_tied=True)
    sizes = sizes_of(shape, OWN, CHOICE, Request())
    assert sizes.gpu is not None
    assert sizes.gpu.weights == 98_799_616
    # The passes of all graphs share their memory; between the graphs lie twice the rows of the largest pass.
    assert sizes.gpu.activations == ON_GPU["activations"] + 2 * 256 * 4 * 576
    assert sizes.session == sizes_of(make_shape(), OWN, CHOICE, Request()).session + 3 * 192 * 1024
    # Every graph of 72 passes; one and two of drafts of 1 to 16 nodes, and the head of each.
    assert sizes.draft == (3 * 72 + 16 * (1 + 2)) * (4096 + 4 * 2048 + 8 * 16) + 2 * 16 * 4096


def test_a_gpu_with_impossible_figures_is_found():
    assert replace(DEVICE, gpu=replace(GPU, bandwidth=0.0)).problem() == "of its GPU bandwidth is 0.0, must be above 0"
    assert isinstance(OWN, Device)
    assert OWN.problem() is None


def test_no_speed_is_foretold_of_a_program_on_the_cpu():
    device = replace(DEVICE, gpu=replace(GPU, is_unified=True, is_software=True))
    made, real = (make_plan(make_shape(), on, Request(budget_bytes=600 * MIB)) for on in (device, SHARED))
    assert made.choice == real.choice
    assert made.given_up
    assert real.tokens_per_second >= real.plain_tokens_per_second > 0
    assert (made.tokens_per_second, made.plain_tokens_per_second) == (None, None)
    assert {other.tokens_per_second for other in made.alternatives} == {None}
    assert "tokens per second" not in " ".join(made.given_up)
    assert "not foretold of a program" in made._repr_html_()
