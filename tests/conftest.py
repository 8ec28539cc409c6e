"""Fixtures of all tests: a small model with random weights, and the real one, as checkpoints and packages."""

from __future__ import annotations

import functools
import gc
import signal
import tempfile
from collections import defaultdict
from pathlib import Path

import platformdirs
import pytest
from hypothesis import HealthCheck, settings

from edge_rt.export import export_model
from edge_rt.store.fetch import fetch_source
from edge_rt.store.layout import open_store
from edge_rt.system.machine import collecting_what_is_new, usable_cpus
from tests.helpers.examples import ALL
from tests.helpers.export_apart import export_apart
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.native_profile import require_native
from tests.helpers.segmented import make_agreeing_pair, make_pair, make_window_pair, pair_in
from tests.helpers.workers import SoleWorker, Worker

# How long an example takes, or making one up, is a matter of the machine.
# The same examples each time, so that a run tells of a change; all of them are others each time.
for name, examples in (("all", ALL), ("any machine", 35)):
    settings.register_profile(
        name, deadline=None, max_examples=examples, derandomize=examples < ALL,
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
settings.load_profile("any machine")

WORKERS = pytest.StashKey[SoleWorker]()
"""What this process shares with the other workers of the run."""


@pytest.fixture(scope="session", autouse=True)
def _objects_set_aside():
    """Say that objects are set aside, which exports ask for: counting takes as long as exporting a tiny model."""
    with collecting_what_is_new():
        yield
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _collect_less(_objects_set_aside):
    """Spare the collector what lives on, modules above all: an export collects often, and walks through it all."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def made_once(request):
    """Return a function of a name and ``make(path)``: where one of the workers has made it."""
    return request.config.stash[WORKERS].made_once


@pytest.fixture(scope="session")
def small_gguf(made_once):
    """A llama checkpoint of two layers, 512 tokens of context, ChatML; its answers are noise, its sizes real."""
    return made_once("small.gguf", lambda path: write_llama_gguf(path, context=512))


@pytest.fixture(scope="session")
def hf_model(tmp_path_factory):
    """A model of floats, to be written as a folder of transformers; see ``write_hf_folder``."""
    path = tmp_path_factory.mktemp("hf") / "floats.gguf"
    return write_llama_gguf(path, weight_type="F32", embedding_type="F32", context=512)


@pytest.fixture(scope="session")
def small_package(small_gguf, made_once):
    """The portable package of ``small_gguf``; nobody may change it."""
    return made_once("small", lambda path: export_model(small_gguf, path, profile="portable"))


@pytest.fixture(scope="session")
def native_package(small_gguf, made_once):
    """The native package of ``small_gguf``; nobody may change it."""
    require_native()
    return made_once("native", lambda path: export_model(small_gguf, path, profile="native"))


@pytest.fixture(scope="session")
def segmented(made_once):
    """A small model as one graph and cut at exits; nobody may change it."""
    require_native()
    return pair_in(made_once("segmented", make_pair))


@pytest.fixture(scope="session")
def agreeing(made_once):
    """A pair as ``segmented`` whose exits often say what the whole model does."""
    require_native()
    return pair_in(made_once("agreeing", make_agreeing_pair))


@pytest.fixture(scope="session")
def segmented_window(made_once):
    """The same with a sliding window in some layers."""
    require_native()
    return pair_in(made_once("segmented-window", make_window_pair))


@pytest.fixture(scope="session")
def smollm2_gguf():
    """The real SmolLM2-135M-Instruct, fetched once per machine through edge-rt's own sources."""
    store = open_store(platformdirs.user_cache_path("edge-rt") / "tests")
    return fetch_source("smollm2-135m-instruct", store=store).path


@pytest.fixture(scope="session")
def smollm2_export(smollm2_gguf, made_once):
    """Return a function of the op profile: a folder with the real model's ``package`` and ``report.json``.

    Activations have 8 bits: which of them measuring gives 16 may depend on the machine, and recorded answers must not.
    """
    return lambda profile: made_once(
        f"smollm2-{profile}", lambda folder: export_apart(smollm2_gguf, folder, profile=profile, activations="int8")
    )


@pytest.fixture(scope="session")
def smollm2_package(smollm2_export):
    """The real model with ONNX Runtime's operators and int8 activations; nobody may change it."""
    return smollm2_export("portable") / "package"


@pytest.fixture(scope="session")
def smollm2_native_package(smollm2_export):
    """The real model with edge-rt's operators; nobody may change it."""
    require_native()
    return smollm2_export("native") / "package"


@pytest.fixture(scope="session")
def smollm2_float_package(smollm2_gguf, made_once):
    """The real model with float activations, which the recorded answers were made with."""
    make = functools.partial(export_model, smollm2_gguf, profile="portable", activations="float")
    return made_once("smollm2-float", make)


def pytest_configure(config):
    """Undo what a shell does to programs it starts in the background: tests send signals to programs of their own."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    given = getattr(config, "workerinput", None)
    if given is None:
        folder = tempfile.TemporaryDirectory(prefix="edge-rt-tests-")
        config.add_cleanup(folder.cleanup)
        config.stash[WORKERS] = SoleWorker(Path(folder.name))
    else:
        number = int(given["workerid"].removeprefix("gw"))
        config.stash[WORKERS] = Worker(Path(given["shared_folder"]), number, given["workercount"])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a worker where the others are."""
    node.workerinput["shared_folder"] = str(node.config.stash[WORKERS].folder)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Return what ``-n auto`` is: a worker for every CPU that this process may use, within memory's reason."""
    return min(usable_cpus(), 8)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Let tests that are marked ``alone`` run while no other does; outermost, because waiting is no test's time."""
    with item.config.stash[WORKERS].turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_addoption(parser):
    """Add the option of the fidelity test, and one for runs that need not try every variant."""
    parser.addoption("--prompts", help="JSON lines with 'turns' (Spec-Bench's question.jsonl) for the fidelity test")
    parser.addoption("--variants", type=int, help="run at most so many variants of a parametrised test, at least 2")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Spare the collector what is made of modules and tests, too: all of it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config, items):
    """Leave out variants, if asked to; then put sessions with thread pools of their own first.

    ONNX Runtime refuses those once the process has a pool.
    """
    if (most := config.getoption("--variants")) is not None:
        kept = spread_variants(items, max(most, 2))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    items.sort(key=lambda item: item.get_closest_marker("own_pools") is None)


def spread_variants(items, most):
    """Return the tests of which every function keeps the first, the last, and some between, ``most`` in all."""
    groups = defaultdict(list)
    for item in items:
        groups[item.nodeid.partition("[")[0]].append(item)
    kept = set()
    for group in groups.values():
        last, count = len(group) - 1, min(most, len(group))
        kept |= {group[round(number * last / max(count - 1, 1))] for number in range(count)}
    return kept
