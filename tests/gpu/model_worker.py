"""Models on a GPU: every KV format, drafter and kind of turn gives the CPU's text."""

from __future__ import annotations

import gc
import io
import shutil
import sys
from pathlib import Path

import numpy as np

from edge_rt.cli.chat.conversation import Conversation
from edge_rt.cli.chat.slash_commands import Commands
from edge_rt.cli.options.groups import PlaceFlags
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.inspect_report import placement_facts
from edge_rt.device.names import ON_CPU, VULKAN, DeviceChoice, DeviceName, parse_device
from edge_rt.device.vulkan import VulkanProvider
from edge_rt.errors import MemoryBudgetExceeded, RuntimeUnavailable
from edge_rt.measure.prompts import PLAIN, Prompt
from edge_rt.measure.verify import answers, compare
from edge_rt.ort.providers import find_device, placement, provider_states
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.package.reader import open_package
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts
from tests.gpu.emulated import DRIVER_MISMATCH, OUT_OF_MEMORY, SOME, main
from tests.gpu.models import (
    DEVICE,
    FOLDER,
    PROMPT,
    SAMPLED,
    answer,
    expect,
    opened,
    package,
    plain,
    provider,
    stop,
)
from tests.helpers.cheap_drafts import CheapDrafts
from tests.helpers.models import load_package
from tests.helpers.small import GREEDY

KINDS = ("spv", "comp", "glsl", "cubin", "cu", "so")
"""Of files that hold code."""


class WithoutRights(VulkanProvider):
    def closed_files(self):
        return (Path("/dev/dri/renderD128"),)


def case_listed(gpu):
    own = provider(gpu)
    states = {state.kind: state for state in provider_states(own)}
    assert [str(device.name) for device in states["cuda"].devices] == ["cuda", "cuda:1"]
    assert find_device(DeviceName("cuda"), own).facts["architecture"] == "sm_87"
    expect(RuntimeUnavailable, "no GPU of that number", lambda: find_device(DeviceName("cuda", 2), own))
    nodes = placement(open_package(package()), DeviceName("cuda"), own).nodes
    assert {node.provider for node in nodes} == {"EdgeRtGpuExecutionProvider"}
    assert len(nodes) > 8
    facts = placement_facts(package(), DeviceName("cuda"), own)
    assert (facts.pop("mapped_bytes"), facts.pop("copied_bytes") > 90_000) == (0, True)
    assert facts == {"device": "cuda", "nodes": {"EdgeRtGpuExecutionProvider": len(nodes)}, "cpu_nodes": []}


def case_placed(gpu):
    """All nodes are on the device, which is listed with its facts; a Vulkan device is asked for its bits."""
    name, own = parse_device(gpu.device), provider(gpu)
    states = {state.kind: state for state in provider_states(own)}
    assert gpu.device in [str(device.name) for device in states[name.kind].devices]
    facts = placement_facts(package(), name, own)
    assert (facts["device"], facts["cpu_nodes"]) == (gpu.device, [])
    assert list(facts["nodes"]) == [gpu.provider]
    assert facts.get("cpu_bits", True)
    (listed,) = [device for device in provider_states(own)[0].devices if device.name == name]
    assert listed.facts.get("cpu_bits") == facts.get("cpu_bits")
    if name.kind == VULKAN:
        # The software device mends its fma, and stands alone where no GPU may be opened.
        assert facts["self_test"]["fma"] == listed.operations["fma"] == "mended"
        (state, *_) = provider_states(gpu.providers(WithoutRights))
        assert "no permission to read and write /dev/dri/renderD128" in str(state.hidden)


def case_every_kv_format(gpu):
    """Plain and drafted trees; passes of a shape are recorded when they come again."""
    for kv in KV_FORMATS["native"]:
        with opened(gpu, package(), kv=kv) as model:
            with gpu.starts(graphs=SOME):
                assert answer(model, spec="off", **GREEDY).token_ids == plain(package(), kv), kv
            found = answer(model)
            assert found.token_ids == plain(package(), kv), kv
            assert found.spec.rows_drafted > 0
            model._cache.check()


def case_foreign_code(gpu):
    """Nothing of a package is compiled: files of code in it are not opened, whatever their names."""
    path, opened_files = Path(FOLDER.name) / "foreign", []
    shutil.copytree(package(), path)
    names = {f"{name}.{kind}" for name in ("self_test", "quant_embed_rows", "attention_span.dots") for kind in KINDS}
    for folder in (path, path / "vulkan", path / "spirv"):
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / name).write_bytes(b"\3\2\x23\7 not a kernel")

    def watch(event, arguments):
        if event in ("open", "ctypes.dlopen") and Path(str(arguments[0])).parent.is_relative_to(path):
            opened_files.append(Path(str(arguments[0])).name)

    sys.addaudithook(watch)
    with opened(gpu, path) as model:
        assert answer(model).token_ids == plain(package())
    assert "manifest.json" in opened_files
    assert not names & set(opened_files), opened_files


def case_sampled(gpu):
    """Sampling reads the logits of every row."""
    with opened(gpu, package(), spec="suffix") as model:
        for _ in range(2):
            # What was said before is drafted the second time.
            found = answer(model, **SAMPLED)
            assert found.token_ids == plain(package(), sampled=True)
        assert found.spec.rows_drafted > 0


def case_drafters(gpu):
    """Every drafter of texts by name, and a head, which reads hidden states."""
    from tests.runtime.test_head_model import head_of

    head = head_of(package(), Path(FOLDER.name) / "head").path
    for mode in ("suffix", "ngram", "recycling", "head"):
        with opened(gpu, package(), spec=mode, drafter=head if mode == "head" else None) as model:
            found = answer(model)
            assert found.token_ids == plain(package()), mode
            assert mode != "head" or found.spec.rows_drafted > 0


def case_draft_model(gpu):
    """A second model drafts, on the CPU."""
    second = package(layers=1)
    for mode in (f"model:{second}", "auto"):
        costs = CheapDrafts()
        with opened(gpu, package(), spec=mode, drafter=second if mode == "auto" else None, costs=costs) as model:
            assert answer(model).token_ids == plain(package()), mode
        # Costs of its passes are the CPU's, as those of any model there.
        own = [key for key in costs.keys if key["package_id"] == open_package(second).id]
        assert own, mode
        assert all("device" not in key for key in own), mode


def case_nested(gpu):
    """Drafts of a model with fewer bits of itself: a second graph over the same cache."""
    path = package(weight_type="F32", embedding_type="F32", output_type="F32", weights="nested8")
    with opened(gpu, path, spec="self", kv="int4x2", costs=CheapDrafts()) as model:
        found = answer(model)
        assert found.token_ids == plain(path, "int4x2")
        assert found.spec.rows_drafted > 0


def case_window(gpu):
    path = package(window=16)
    with opened(gpu, path) as model:
        assert answer(model, PROMPT * 2).token_ids == plain(path, prompt=PROMPT * 2)


def case_reuse(gpu):
    """Turns go on from the rows in the cache, also behind rows that were taken back."""
    path, longer = package(), PROMPT + "At noon"
    with opened(gpu, path) as model:
        assert answer(model).token_ids == plain(path)
        found = answer(model, longer)
        assert found.usage.cached_tokens > 10
        assert found.token_ids == plain(path, prompt=longer)
        assert answer(model).token_ids == plain(path)
        model.reset()
        assert answer(model).token_ids == plain(path)


def case_chat(gpu):
    def talk(model):
        chat = model.chat()
        said = [chat.send(text, max_tokens=6, **GREEDY).token_ids for text in ("Hello", "More")]
        assert chat.undo()
        return [*said, chat.send("Less", max_tokens=6, **GREEDY).token_ids]

    with opened(gpu, package()) as model, load_package(package(), spec="off", ctx=256) as cpu:
        assert talk(model) == talk(cpu)


def case_passes(gpu):
    """Logits and hidden states of any rows, in passes of all sizes, have the CPU's bits."""
    ids = [(5 + 41 * i) % 419 for i in range(60)]

    def rows(model):
        found = []
        with model.passes() as (runner, _):
            for start, end in ((0, 33), (33, 34), (34, 35), (35, 36), (36, 44), (44, 52), (52, 60)):
                outputs = runner.forward(ids[start:end], start, min(8, end - start))
                found += [outputs.logits.copy(), outputs.hidden.copy(), outputs.top.ids.copy()]
                assert outputs.logits is outputs.logits
        return found

    with opened(gpu, package(), hidden=True, spec="off") as model, load_package(package(), hidden=True, ctx=256) as cpu:
        for found, expected in zip(rows(model), rows(cpu), strict=True):
            assert found.tobytes() == expected.tobytes()
            assert np.isfinite(found).all()


def case_second_gpu(gpu):
    """Models on two GPUs, in turns."""
    with opened(gpu, package(), device="cuda:1") as second, opened(gpu, package()) as first:
        assert second.describe()["device"]["device"] == "cuda:1"
        for model in (second, first, second):
            assert answer(model).token_ids == plain(package())


def case_two_models(gpu):
    """Two models on one GPU, in turns."""
    with opened(gpu, package()) as first, opened(gpu, package(window=16)) as second:
        for _ in range(2):
            assert answer(first).token_ids == plain(package())
            assert answer(second).token_ids == plain(package(window=16))


def case_cancelled(gpu):
    """A pass that is stopped leaves the model as it was, also in the middle of recording."""
    with opened(gpu, package(), spec="off") as model:
        for count in range(1, 5):
            stop(model, count)
            assert answer(model).token_ids == plain(package()), count


def case_verified(gpu):
    """What ``edge-rt verify`` compares: plain and drafted answers are the same, and drafts are allowed at once."""
    prompts = [Prompt(index, text) for index, text in enumerate((PROMPT, "one two one two one"))]
    config = GenerationConfig(max_tokens=8, repetition_guard=False, **GREEDY)
    with opened(gpu, package()) as model:
        assert model.verification is None
        plain_answers, drafted = (list(answers(model, prompts, config, mode, kv="f16")) for mode in (PLAIN, "suffix"))
        assert [compare(*pair) for pair in zip(plain_answers, drafted, strict=True)] == [None, None]
        assert sum(answer.drafted for answer in drafted) > 0


def case_auto(gpu):
    """What ``auto`` takes, by costs that are written by hand under the keys that models have on both devices."""
    path, store = package(), CostStore(Path(FOLDER.name) / "costs")
    keys = []
    for device in ("cpu", "cuda"):
        with opened(gpu, path, device=device, costs=store, spec="off") as model:
            keys.append(model.measured_costs.key)

    def load(**options):
        return opened(gpu, path, device="auto", costs=store, **options)

    def measured(cpu_ms, gpu_ms):
        for key, ms in zip(keys, (cpu_ms, gpu_ms), strict=True):
            store.save(key, RowCosts((1, 8, 16), (64,), ((ms, 1.1 * ms, 1.2 * ms),)))

    with load() as model:
        assert model.device is None
        assert "edge-rt bench -m MODEL --calibrate --device cuda measures it" in model.device_choice.note
    measured(2.0, 4.0)
    with load() as model:
        assert (model.device, model.device_choice) == (None, DeviceChoice(ON_CPU))
    measured(4.0, 2.0)
    options = LoadOptions(ctx=256, costs=store, gpu_providers=provider(gpu))
    assert plan_package(open_package(path), options).device.gpu.device_name == DeviceName("cuda")
    for again in ({}, {"memory": 1 << 30, "device_memory": 1 << 30}):
        with load(**again) as model:
            assert model.describe()["device"]["device"] == "cuda"
            assert model.device_choice == DeviceChoice(DeviceName("cuda"))
            assert answer(model).token_ids == plain(path)
    gc.collect()
    before = gpu.live()
    # It is opened, and is full in the middle of the load; nothing of it stays.
    for number in (2, 7):
        gpu.fault("cuMemAlloc", number, OUT_OF_MEMORY)
        with load() as model:
            gpu.fault("", -1, 0)
            assert model.device is None
            assert model.device_choice.has_failed
            assert "The CPU computes" in model.device_choice.note
            assert gpu.live() == before, (number, gpu.live(), before)
            assert answer(model).token_ids == plain(path)
        gpu.fault("cuMemAlloc", number, OUT_OF_MEMORY)
        expect(MemoryBudgetExceeded, "", lambda: opened(gpu, path, costs=store).__enter__())
        gpu.fault("", -1, 0)
    # The driver fails before it lists its GPUs.
    for function in ("cuInit", "cuDeviceGetCount"):
        gpu.fault(function, 0, DRIVER_MISMATCH)
        with load() as model:
            gpu.fault("", -1, 0)
            assert "The CPU computes, because the GPU failed: The driver for" in model.device_choice.note
            assert "Restart the machine" in model.device_choice.note
    # The other GPU is the fastest, and fails; this one takes its place.
    with opened(gpu, path, device="cuda:1", costs=store, spec="off") as model:
        store.save(model.measured_costs.key, RowCosts((1, 8, 16), (64,), ((1.0, 1.1, 1.2),)))
    gpu.fault("cuMemAlloc", 3, OUT_OF_MEMORY)
    with load() as model:
        gpu.fault("", -1, 0)
        assert model.describe()["device"]["device"] == "cuda"
        assert "The GPU cuda computes, because cuda:1 failed: " in model.device_choice.note
        assert answer(model).token_ids == plain(path)
    # In a chat as well.
    terminal = Terminal(io.StringIO(), err := io.StringIO())
    places, greedy = PlaceFlags(store=Path(FOLDER.name) / "store"), GenerationConfig(max_tokens=2, **GREEDY)
    chat = Conversation(terminal, str(path), places, options.but(ctx=64, spec="off"), greedy)
    assert chat.device.startswith("cuda:1 (")
    gpu.fault("cuMemAlloc", 3, OUT_OF_MEMORY)
    Commands(chat).run("/ctx 128")
    gpu.fault("", -1, 0)
    assert "warning: The GPU cuda computes, because cuda:1 failed: " in err.getvalue()
    assert "device: cuda (" in err.getvalue()
    chat.close()
    # Less than the plan counts for CUDA's context and this model.
    small = 512 << 20
    gpu.configure(**{**DEVICE, "memory": small})
    keys[1]["device"]["memory_bytes"] = small
    measured(4.0, 2.0)
    with load() as model:
        assert model.device is None
        assert "the model does not fit its memory" in model.device_choice.note
    expect(MemoryBudgetExceeded, "memory of the GPU", lambda: opened(gpu, path, costs=store).__enter__())
    gpu.configure(**DEVICE)


if __name__ == "__main__":
    main(globals(), **DEVICE)
