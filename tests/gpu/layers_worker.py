"""Models of which a GPU has memory for some layers only: the CPU computes the others, and the text stays the CPU's."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from edge_rt.device.names import GPU_LAYERS, parse_device
from edge_rt.errors import MemoryBudgetExceeded, UnsupportedModel
from edge_rt.export import export_model
from edge_rt.ort.providers import find_device
from edge_rt.ort.session import Session, pool_size
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts
from edge_rt.system.machine import usable_cpus
from tests.gpu.emulated import SOME, main
from tests.gpu.models import (
    DEVICE,
    FOLDER,
    PINNED,
    PROMPT,
    SAMPLED,
    answer,
    divided,
    expect,
    fill_at_every_allocation,
    opened,
    package,
    plain,
    provider,
    room,
    stop,
)
from tests.helpers.cheap_drafts import CheapDrafts
from tests.helpers.family_cases import load_case, write_folder
from tests.helpers.models import load_package
from tests.helpers.small import GREEDY

LAYERS = 4
IDS = [(5 + 41 * i) % 419 for i in range(60)]


def whole():
    return package(layers=LAYERS)


def case_texts(gpu):
    """Every number of layers, plain and with drafted trees; each layer's cache lies where the layer is computed."""
    path = whole()
    for layers, kv in ((1, "f16"), (2, "int4"), (3, "f32")):
        with divided(gpu, path, layers, kv=kv) as model:
            with model.passes() as (runner, _):
                cached = runner._io_binding
                assert [len(cached.buffers), len(cached._caches)] == [LAYERS - layers, layers]
            on_cpu = {name.partition("/")[0] for name in model.describe()["cpu_nodes"]}
            # Rows whose logits are wanted may be chosen before the last layer begins.
            assert on_cpu - {"residual.wanted"} == {"embedding", *(f"layer{n}" for n in range(LAYERS - layers))}
            # Passes whose nodes are not all on the device cannot be recorded.
            with gpu.starts(kernels=SOME, graphs=0):
                assert answer(model, spec="off", **GREEDY).token_ids == plain(path, kv), layers
            found = answer(model)
            assert found.token_ids == plain(path, kv), layers
            assert found.spec.rows_drafted > 0, layers
            model._cache.check()


def case_modes(gpu):
    """Sampled, with all drafters of texts at once, and with a head, which reads hidden states."""
    from tests.runtime.test_head_model import head_of

    path = whole()
    with divided(gpu, path, 2, spec="auto") as model:
        for _ in range(2):
            found = answer(model, **SAMPLED)
            assert found.token_ids == plain(path, sampled=True)
        assert found.spec.rows_drafted > 0
    head = head_of(path, Path(FOLDER.name) / "head_of_layers").path
    with divided(gpu, path, 1, spec="head", drafter=head) as model:
        found = answer(model)
        assert found.token_ids == plain(path)
        assert found.spec.rows_drafted > 0


def case_passes(gpu):
    """Logits and hidden states of passes of any size have the CPU's bits, with a head of its own and in a window."""
    for path in (package(layers=3, tied=False, output_type="F16"), package(layers=3, window=16)):
        with divided(gpu, path, 2, hidden=True) as model, load_package(path, hidden=True, ctx=256) as cpu:
            for found, expected in zip(rows(model), rows(cpu), strict=True):
                assert found.tobytes() == expected.tobytes()
                assert np.isfinite(found).all()


def rows(model):
    found = []
    with model.passes() as (runner, _):
        for start, end in ((0, 33), (33, 34), (34, 35), (35, 36), (36, 44), (44, 52), (52, 60)):
            outputs = runner.forward(IDS[start:end], start, min(8, end - start))
            found += [outputs.logits.copy(), outputs.hidden.copy(), outputs.top.ids.copy()]
    return found


def family(name):
    folder = Path(FOLDER.name) / name
    path = folder / "package"
    export_model(write_folder(folder, load_case(name)), path, profile="native", accept_loss=True)
    return path


def case_rotations(gpu):
    """Rotations that are computed at load are read on both sides."""
    path = family("phi3_partial")
    assert open_package(path).manifest.decoder.loads_rope
    asked = {"ctx": 96, "spec": "off", "kv": PINNED["kv"]}
    with divided(gpu, path, 1, **asked) as model, load_package(path, **asked) as cpu:
        for found, expected in zip(logits(model), logits(cpu), strict=True):
            assert found.tobytes() == expected.tobytes()


def logits(model):
    found = []
    with model.passes() as (runner, _):
        for start, end in ((0, 17), (17, 18), (18, 19), (19, 24)):
            found.append(runner.forward([5 + i for i in range(start, end)], start, 1).logits.copy())
    return found


def case_nested(gpu):
    """Drafts of a model with fewer bits of itself: the layers of the second graph lie where those of the first do."""
    path = package(layers=3, weight_type="F32", embedding_type="F32", output_type="F32", weights="nested8")
    with divided(gpu, path, 2, spec="self", kv="int4x2", costs=CheapDrafts()) as model:
        found = answer(model)
        assert found.token_ids == plain(path, "int4x2")
        assert found.spec.rows_drafted > 0


def case_talks(gpu):
    """Turns go on from the rows in both caches, also behind rows that were taken back, and in a window."""

    def talk(model):
        chat = model.chat()
        said = [chat.send(text, max_tokens=6, **GREEDY).token_ids for text in ("Hello", "More")]
        assert chat.undo()
        said.append(chat.send("Less", max_tokens=6, **GREEDY).token_ids)
        model.reset()
        return [*said, answer(model, PROMPT * 2).token_ids]

    for path in (whole(), package(layers=3, window=16)):
        with divided(gpu, path, 2) as model, load_package(path, spec="off", ctx=256) as cpu:
            assert talk(model) == talk(cpu)


def case_cancelled(gpu):
    """A pass that is stopped leaves the model as it was."""
    with divided(gpu, whole(), 2, spec="off") as model:
        for count in range(1, 4):
            stop(model, count)
            assert answer(model).token_ids == plain(whole()), count


def case_out_of_memory(gpu):
    """Whichever allocation fails, the error is of memory and all is given back; a later load works.

    The case of the same name in ``model_fault_worker`` tries all of them; here it is every third.
    """
    path = whole()

    def body():
        with divided(gpu, path, 2, spec="off") as model:
            assert answer(model, "Hello", 3).token_ids == plain(path, prompt="Hello")[:3]

    fill_at_every_allocation(gpu, body, step=3)


def case_auto(gpu):
    """``auto`` takes no GPU without memory for all layers, and costs of some of them are not those of all."""
    path, store = whole(), CostStore(Path(FOLDER.name) / "costs of layers")
    keys = []
    for device in ("cpu", gpu.device):
        with opened(gpu, path, device=device, costs=store, spec="off") as model:
            keys.append(model.measured_costs.key)
    with divided(gpu, path, 2, spec="off", costs=store) as model:
        of_some = model.measured_costs.key
        assert model.describe()["device"][GPU_LAYERS] == 2
    assert of_some != keys[1]

    small = room(gpu, path, 2, ctx=256, **PINNED)
    gpu.configure(**{**DEVICE, "memory": small})
    for key in (keys[1], of_some):
        key["device"]["memory_bytes"] = small

    def is_on_cpu(note):
        asked = {**PINNED, "ctx": 256, "memory": 1 << 30}
        with load_package(path, device="auto", gpu_providers=provider(gpu), costs=store, **asked) as model:
            assert model.device is None
            assert note in model.device_choice.note
        with load_package(path, device=gpu.device, gpu_providers=provider(gpu), costs=store, **asked) as model:
            assert model.plan.choice.gpu_layers == 2

    def costs(ms):
        return RowCosts((1, 8, 16), (64,), ((ms, 1.1 * ms, 1.2 * ms),))

    store.save(keys[0], costs(4.0))
    store.save(of_some, costs(2.0))
    is_on_cpu("its speed with this model is not known")
    store.save(keys[1], costs(2.0))
    is_on_cpu("has no room")
    gpu.configure(**DEVICE)


def case_refused(gpu):
    """Layers stay with those whose keys they read, less than one is not loaded, nor a graph without such a layer."""
    own = room(gpu, whole(), 1, ctx=256, **PINNED)
    context = provider(gpu).of(parse_device(gpu.device)).context_bytes
    why = "Its last 4 layers are not divided with the CPU, because they read each other's keys and values"
    for path, count, said in (
        (family("gemma4_text"), context + 1000, why),
        (whole(), own - 1, "memory of the GPU"),
    ):
        asked = {**PINNED, "ctx": 256, "device_memory": count}
        load = partial(load_package, path, device=gpu.device, gpu_providers=provider(gpu), **asked)
        expect(MemoryBudgetExceeded, said, load)
    device = find_device(parse_device(gpu.device), provider(gpu)).dividing(LAYERS, 1)
    graph, threads = whole() / "model.onnx", pool_size() or usable_cpus()
    # The provider claims nothing then, and ONNX Runtime leaves all nodes to the CPU without an error.
    session = Session(graph, threads=threads, device=device, profile="native")
    assert all(node.is_on_cpu for node in session.placement)
    for host_layers in (0, LAYERS - 1):
        options = {"device": device, "host_layers": host_layers}
        binding = open_io_binding(open_package(whole()).manifest, 64, "f16", **options)
        text = f"The CPU would compute 4 of 4 layers; {host_layers} were planned"
        expect(UnsupportedModel, text, partial(binding.check, session))


if __name__ == "__main__":
    main(globals(), **DEVICE)
