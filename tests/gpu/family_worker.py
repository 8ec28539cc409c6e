"""Small models of every family on a GPU: logits of passes, trees and texts are the CPU's.

The case ``every_family`` takes minutes, and fails with the names of all families whose results differ.
"""

from __future__ import annotations

from edge_rt.device.names import parse_device
from edge_rt.errors import EdgeRTError
from edge_rt.ort.providers import placement
from edge_rt.package.reader import open_package
from tests.gpu.emulated import main
from tests.gpu.models import DEVICE, opened, provider
from tests.gpu.plan_worker import check
from tests.gpu.state_worker import compare, package
from tests.helpers.family_data import CASES
from tests.helpers.models import load_package

# Heads that differ, keys of earlier layers and further embeddings; values that are keys; experts beside.
GEMMA4 = ("gemma4_text", "gemma4_text_keys", "gemma4_text_experts")
REFUSED = ("cohere2", "stablelm_parallel")
"""What export refuses."""
# A pass of many rows, of one, of a few, and a tree behind them.
SIZES = (33, 1, 7)
TREE = [-1, -1, 1, 1, 2, 2]


def logits(model):
    """Return the logits of passes of several sizes, and of a tree."""
    found, vocabulary = [], model.package.manifest.model.vocab_size
    tokens = [(5 + 41 * i) % vocabulary for i in range(sum(SIZES) + len(TREE))]
    with model.passes() as (runner, cache):
        cache.truncate(0)
        for count in SIZES:
            first = cache.length
            with cache.reserve(count) as reserved:
                found.append(runner.forward(tokens[first : first + count], first, count).logits.copy())
                reserved.commit(tokens[first : first + count])
        first = cache.length
        with cache.reserve(len(TREE), TREE):
            found.append(runner.forward(tokens[first:], first, len(TREE), parents=TREE).logits.copy())
    return found


def compare_family(gpu, name, **options):
    """Compare a family's logits and texts, plain and drafted; all nodes of its graph are on the device."""
    path = package(name)
    nodes = placement(open_package(path), parse_device(gpu.device), provider(gpu)).nodes
    assert {node.provider for node in nodes} == {gpu.provider}, [
        node for node in nodes if node.provider != gpu.provider
    ]
    with opened(gpu, path, spec="off", **options) as model, load_package(path, spec="off", ctx=256, **options) as cpu:
        for found, expected in zip(logits(model), logits(cpu), strict=True):
            assert found.tobytes() == expected.tobytes()
    return compare(gpu, path, spec="suffix", **options)


def case_gemma4(gpu):
    for name in GEMMA4:
        assert compare_family(gpu, name) > 0, name


def case_kv_formats(gpu):
    """Rows of the cache in every format, of heads that differ."""
    for kv in ("f32", "f16", "int4"):
        compare_family(gpu, "gemma4_text", kv=kv)


def case_planned(gpu):
    """What lies on the GPU is what was planned, while passes become larger."""
    check(gpu, package("gemma4_text"), spec="suffix", kv="f16", generated=8)


def case_every_family(gpu):
    found = {}
    for name in CASES:
        if name not in REFUSED:
            try:
                compare_family(gpu, name)
            except (AssertionError, EdgeRTError) as error:
                found[name] = repr(error)
            print(name, found.get(name, "ok"), flush=True)
    assert not found, found


if __name__ == "__main__":
    main(globals(), **DEVICE)
