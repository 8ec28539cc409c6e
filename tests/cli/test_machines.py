"""How many models of what size run on the machines of a file."""

from __future__ import annotations

import json

import pytest

from edge_rt.cli.machines import Machines, Sizer, read_machines
from edge_rt.errors import ConfigError, InputError
from edge_rt.memory.device import presets
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts
from edge_rt.runtime.speculation.stored_costs import ANSWER_MS
from edge_rt.store.layout import Store
from edge_rt.system.machine import cpu_model
from edge_rt.version import VERSION
from tests.memory.shapes import DEVICE, make_shape

PI = presets()["rpi5-8gb"].device
OPTIONS = LoadOptions(ctx=512, slots=4, spec="off")
GB = 10**9


@pytest.fixture
def sizer(tmp_path):
    return Sizer(make_shape(), OPTIONS, DEVICE, Store(tmp_path), CostStore(tmp_path / "costs"))


def test_files_of_both_kinds_say_the_same(tmp_path):
    toml, document = tmp_path / "machines.toml", tmp_path / "machines.json"
    toml.write_text(
        '[[machines]]\nname = "worker"\nmemory = "12GB"\ncpus = 8\ncount = 3\n'
        '[[machines]]\nname = "pi"\ndevice = "rpi5-8gb"\n'
    )
    entries = [{"name": "worker", "memory": 12 * GB, "cpus": 8, "count": 3}, {"name": "pi", "device": "rpi5-8gb"}]
    document.write_text(json.dumps({"machines": entries}))
    expected = (
        Machines("worker", 12 * GB, 8, 3, None),
        Machines("pi", PI.available_bytes, PI.threads, 1, PI),
    )
    assert read_machines(toml) == read_machines(document) == expected


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("machines = []", InputError, "wrong value under 'machines'"),
        ("[machines", InputError, "no TOML"),
        ('[[machines]]\nname = "a"\ncpus = 2', InputError, "lacks the key 'memory'"),
        ('[[machines]]\nname = "a"\nmemory = "1GB"\ncpus = 0', InputError, "wanted is a whole number from 1 to 1024"),
        ('[[machines]]\nname = "a"\nmemory = "1GB"\ncpus = 2\ncoutn = 3', InputError, "unknown key 'coutn'"),
        ('[[machines]]\nname = "a"\nmemory = "much"\ncpus = 2', ConfigError, r"machines\[0\]: memory: The size"),
        (
            '[[machines]]\nname = "a"\ndevice = "rpi5-8g"',
            ConfigError,
            r"machines\[0\]: device: .* mean rpi5-8gb",
        ),
        (257 * '[[machines]]\nname = "a"\n', InputError, "wanted is 1 to 256 entries"),
        (2 * '[[machines]]\nname = "a"\nmemory = "1GB"\ncpus = 2\n', InputError, "'a' is there twice"),
    ],
    ids=["empty", "syntax", "missing", "none", "unknown", "size", "device", "many", "twice"],
)
def test_what_is_wrong_with_a_file_is_said(text, error, says, tmp_path):
    path = tmp_path / "machines.toml"
    path.write_text(text)
    with pytest.raises(error, match=says):
        read_machines(path)


def test_machines_have_as_many_models_as_their_memory_and_their_cpus_allow(sizer):
    large, small = Machines("large", 64 * GB, 8, 2, None), Machines("small", GB, 8, 1, None)
    sizing = sizer.best([large, small])
    # The figures of the machine are those of two threads: with more a model would be no faster.
    assert (sizing.cpus, [one.models for one in sizing.shares]) == (2, [4, GB // sizing.memory_bytes])
    assert sizing.models == 2 * 4 + GB // sizing.memory_bytes
    assert sizing.plan.fits
    assert sizing.plan.total_bytes <= sizing.memory_bytes
    assert sizing.tokens_per_second == pytest.approx(sizing.models * sizing.shares[0].speed.tokens_per_second)


def test_where_memory_is_short_fewer_models_have_more_cpus(sizer):
    [share] = sizer.best([Machines("one", GB * 6 // 10, 8, 1, None)]).shares
    assert share.models == 1


def test_a_model_that_fits_nowhere_says_what_it_needs(sizer):
    sizing = sizer.best([Machines("tiny", 100 << 20, 2, 1, None)])
    assert (sizing.models, sizing.tokens_per_second) == (0, 0)
    assert sizing.plan.minimum.host > 100 << 20


def test_passes_of_another_number_of_threads_count_in_proportion(tmp_path, small_costs_package):
    package, costs = small_costs_package
    sizer = Sizer(package, LoadOptions(ctx=128, slots=4), DEVICE, Store(tmp_path), costs)

    def rate(cpus):
        [share] = sizer.best([Machines("one", GB, cpus, 1, None)]).shares
        assert share.speed.basis == "measured"
        return share.models, share.threads, share.speed.tokens_per_second

    # A pass over four rows takes 4 ms with two threads.
    expected = 4e3 / (4.0 + 4 * ANSWER_MS)
    assert rate(2) == (1, 2, pytest.approx(expected))
    assert rate(1) == (1, 2, pytest.approx(expected / 2))
    # Two of two CPUs do not go into three.
    assert rate(3) == (3, 2, pytest.approx(expected / 2))


@pytest.fixture
def small_costs_package(native_package, tmp_path):
    from edge_rt.package.reader import open_package

    package, costs = open_package(native_package), CostStore(tmp_path / "costs")
    key = {
        "package_id": package.id, "threads": 2, "edge_rt": VERSION, "cpu": cpu_model(), "isa": None,
        "kv_format": package.manifest.kv_formats[0],
    }  # fmt: skip
    costs.save(key, RowCosts((1, 4), (64,), ((2.0, 4.0),)))
    return package, costs


def test_the_command_tells_what_to_give_ray(inline, native_package, tmp_path):
    path = tmp_path / "machines.toml"
    path.write_text(
        '[[machines]]\nname = "worker"\nmemory = "4GB"\ncpus = 4\ncount = 3\n[[machines]]\nname = "pi"\n'
        'device = "rpi5-8gb"\n[[machines]]\nname = "tiny"\nmemory = "100MB"\ncpus = 1\n'
    )
    command = ("plan", native_package, "--machines", path)
    document = json.loads(inline(*command, "--json").stdout)
    assert (document["fits"], document["slots"]) == (True, 4)
    assert document["models"] == sum(one["count"] * one["models"] for one in document["machines"])
    assert [one["speed_basis"] for one in document["machines"]][1] == "figures"
    assert any("No model of this size runs on tiny" in note for note in document["notes"])
    shown = inline(*command)
    size = f"num_cpus={document['num_cpus']}, memory={document['memory_bytes']}"
    assert f"{size}, ActorPoolStrategy(size={document['models']})" in shown.stdout.decode()
    assert "other machines are faster or slower" in shown.stderr.decode()
    path.write_text('[[machines]]\nname = "tiny"\nmemory = "100MB"\ncpus = 1\n')
    assert inline(*command).returncode == 4
    assert inline(*command, "--device", "cpu").returncode == 2
