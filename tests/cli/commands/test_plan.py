from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs" / "memory.md"
KEYS = {"fits", "budget_bytes", "total_bytes", "minimum_bytes", "terms", "choice", "alternatives"}
TERMS = [
    "runtime", "tokenizer", "weights", "session", "kv_cache", "activations", "logits", "sampling", "drafters",
]  # fmt: skip


def test_json_says_what_fits_and_what_each_part_takes(inline, native_package):
    result = inline("plan", "-m", native_package, "--memory", "3GiB", "--json")
    plan = json.loads(result.stdout)
    assert result.returncode == 0
    assert set(plan) >= KEYS
    assert list(plan["terms"]) == TERMS
    assert plan["total_bytes"] == sum(plan["terms"].values()) <= plan["budget_bytes"] == 3 << 30
    assert plan["fits"] is True
    assert plan["is_estimate"] is False


def test_what_does_not_fit_ends_in_code_4_with_the_plan_and_a_setting_that_fits(inline, native_package):
    # Of this machine's memory a part is read from the process, which grows.
    command = ("plan", "-m", native_package, "--device", "generic", "--json")
    result = inline(*command, "--memory", "10MiB")
    plan = json.loads(result.stdout)
    assert (result.returncode, plan["fits"]) == (4, False)
    flags = plan["alternatives"][0]["flags"]
    again = inline(*command, *flags)
    assert again.returncode == 0
    assert json.loads(again.stdout)["total_bytes"] == plan["alternatives"][0]["total_bytes"]


def test_the_table_names_every_part_and_commands_to_type(inline, native_package):
    result = inline("plan", "-m", native_package, "--memory", "3GiB")
    text = result.stdout.decode()
    for word in (*TERMS, "total", "budget", "smallest budget that works", "tokens per second"):
        assert word in text
    lines = text.splitlines()
    commands = [line for line in lines if line.startswith("  edge-rt chat -m ")]
    assert commands
    assert text.count("(+-") > len(commands)
    for command in commands:
        words = lines[lines.index(command) + 1]
        assert all(word in words for word in (" cache, ", "speculation", "context ", "chunk "))
    # Budgets that are just enough are tried for another machine: this process grows.
    within = [command for command in commands if "--memory 3GiB" in command]
    assert within
    for command in within:
        assert inline("plan", *shlex.split(command)[2:]).returncode == 0


def test_the_minimum_is_exact_for_what_is_pinned(inline, native_package):
    # Of this machine's memory a part is read from the process, which grows.
    flags = (
        "plan",
        "-m",
        native_package,
        "--device",
        "generic",
        "--ctx",
        "64",
        "--kv-type",
        "f32",
        "--spec",
        "off",
        "--json",
    )
    minimum = json.loads(inline(*flags).stdout)["minimum_bytes"]
    assert inline(*flags, "--memory", minimum).returncode == 0
    assert inline(*flags, "--memory", minimum - 1).returncode == 4


def test_plans_for_another_machine_offer_plans_for_it(inline, native_package):
    text = inline("plan", "-m", native_package, "--device", "rpi5-8gb", "--memory", "1GiB").stdout.decode()
    commands = [line for line in text.splitlines() if line.startswith("  edge-rt ")]
    assert commands
    for command in commands:
        assert command.startswith("  edge-rt plan -m ")
        assert command.endswith("--device rpi5-8gb")
        assert inline("plan", *shlex.split(command)[2:]).returncode == 0


def test_presets_stand_for_other_machines(inline, native_package):
    shown = inline("plan", "--device", "list").stdout.decode()
    assert "rpi5-8gb" in shown
    plan = json.loads(inline("plan", "-m", native_package, "--device", "rpi5-8gb", "--json").stdout)
    assert plan["budget_bytes"] == 6_900_000_000
    assert plan["device"]["name"] == "rpi5-8gb"
    documents = json.loads(inline("plan", "--device", "list", "--json").stdout)
    assert all(len(entry["evidence"]["bandwidth_gb_s"]) == 2 for entry in documents["presets"])


@pytest.mark.parametrize(
    "flags",
    [
        ("--device", "abacus"), ("--memory", "much"), ("--ctx", "1"), ("--kv-type", "int3"), ("--spec", "magic"),
        ("--spec", "off", "--draft-max", "3"), ("--draft-max", "0"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_a_usage_error(inline, native_package, flags):
    assert inline("plan", "-m", native_package, *flags).returncode == 2


def test_a_model_that_is_not_here_is_told(inline):
    result = inline("plan", "-m", "smollm2-135m-instruct")
    assert result.returncode == 3
    assert b"edge-rt pull" in result.stderr


def test_nothing_heavy_is_imported_for_a_package(native_package, cli_env):
    program = (
        "import sys; from edge_rt.cli.main import main; "
        f"code = main(['plan', '-m', {str(native_package)!r}, '--json']); "
        "print(sorted({'numpy', 'onnxruntime', 'tokenizers', 'onnx'} & set(sys.modules)), code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=cli_env, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0"


def test_doctor_measures_this_machine_and_keeps_it(cli, tmp_path):
    facts = json.loads(cli("doctor", "--save-profile", "--profile-name", "bench-1", "--json").stdout)
    saved = json.loads(Path(facts["profile"]).read_text())
    assert saved["name"] == "bench-1"
    assert saved["is_measured"] is True
    assert saved["bandwidth"] > 1e8
    assert 20 << 20 < saved["base_bytes"] < 200 << 20
    listed = json.loads(cli("plan", "--device", "list", "--json").stdout)
    assert [entry["name"] for entry in listed["saved"]] == ["bench-1"]


@pytest.mark.parametrize("name", ["../x", "list", "rpi5-8gb"])
def test_doctor_refuses_a_name_before_it_measures(inline, name):
    assert inline("doctor", "--save-profile", "--profile-name", name).returncode == 2


def test_doctor_refuses_a_name_for_nothing(inline):
    assert inline("doctor", "--profile-name", "mine").returncode == 2


def test_a_small_saved_base_does_not_lower_the_minimum(cli, native_package):
    flags = ("plan", "-m", native_package, "--json")
    before = json.loads(cli(*flags).stdout)["minimum_bytes"]
    path = Path(json.loads(cli("doctor", "--save-profile", "--json").stdout)["profile"])
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_bytes": 10 << 20}))
    after = json.loads(cli(*flags).stdout)
    assert after["device"]["is_measured"] is True
    # Resident memory is not the same to the page in two processes.
    assert after["minimum_bytes"] >= before - (1 << 20)


def test_flags_that_a_small_package_does_not_use_are_named(inline, small_package):
    command = ("plan", "-m", small_package, "--draft-max", "5")
    said = "speculation is off (auto, op profile portable): not used: --draft-max."
    shown = inline(*command)
    assert said in shown.stderr.decode()
    assert "--draft-max" not in shown.stdout.decode()
    assert said in json.loads(inline(*command, "--json").stdout)["notes"]
    assert said not in json.loads(inline(*command, "--spec", "suffix", "--json").stdout)["notes"]


def test_a_folder_is_no_corpus(inline, native_package, tmp_path):
    result = inline("plan", "-m", native_package, "--corpus", tmp_path, "--json")
    assert result.returncode == 6
    assert "Is a directory" in json.loads(result.stdout)["error"]["numbers"]


def documented(table):
    """Return a table about JSON in ``docs/memory.md``: first column -> keys that the second one names."""
    section = DOCS.read_text(encoding="utf-8").partition("\n## The plan as JSON\n")[2].partition("\n## ")[0]
    lines = section.partition(f"| {table} |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [line.strip("| ").split(" | ", 1) for line in lines]
    return {name.strip("`"): re.findall(r"`([a-z_]+)`", text) for name, text in rows}


@pytest.mark.parametrize("device", ["rpi5-8gb", "rtx4060-laptop-8gb", "jetson-orin-nano-8gb"])
def test_every_key_of_the_document_is_documented(inline, native_package, device):
    plan = json.loads(inline("plan", "-m", native_package, "--device", device, "--json").stdout)
    assert list(plan) == list(documented("key"))
    objects = {name: plan[name] for name in ("regimes", "choice", "shape", "device")}
    objects |= {"alternatives": plan["alternatives"][0]} | ({"gpu": gpu} if (gpu := plan["device"]["gpu"]) else {})
    found = documented("object")
    # Of models with experts, which this one has not.
    assert plan["experts"] is None
    assert set(found) == {*objects, "gpu", "experts"}
    for name, one in objects.items():
        assert set(found[name]) - {"device"} == set(one), name


class TestGpus:
    """Plans for machines with GPUs, which are presets here."""

    def test_both_columns_are_shown(self, inline, native_package):
        text = inline("plan", "-m", native_package, "--device", "rtx4060-laptop-8gb").stdout.decode()
        assert re.search(r"expected +\d{4,} tokens per second", text), text
        assert "Planned, not measured" in text
        rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
        assert rows["process"][:2] == ["process", "GPU"]
        assert "gpu_context" in rows
        assert rows["total"].count("MiB") == 2
        assert "tokens per second (planned, not measured)" in text
        assert "+-" not in text

    def test_the_document_has_the_same(self, inline, native_package):
        flags = ("plan", "-m", native_package, "--device", "rtx4060-laptop-8gb", "--device-memory", "2GiB", "--json")
        plan = json.loads(inline(*flags).stdout)
        assert plan["device_total_bytes"] == sum(plan["device_terms"].values()) < plan["device_budget_bytes"] == 2 << 30
        assert set(plan["device_terms"]) == {"weights", "kv_cache", "activations", "logits", "gpu_context"}
        assert plan["device"]["gpu"]["is_unified"] is False
        assert plan["device_minimum_bytes"] <= plan["device_total_bytes"]

    def test_shared_memory_has_one_budget(self, inline, native_package):
        flags = ("plan", "-m", native_package, "--device", "jetson-orin-nano-8gb")
        plan = json.loads(inline(*flags, "--json").stdout)
        assert plan["device_budget_bytes"] is plan["device_minimum_bytes"] is None
        assert plan["device_total_bytes"] == sum(plan["device_terms"].values()) > 0
        assert plan["total_bytes"] == sum(plan["terms"].values()) + sum(plan["device_terms"].values())
        assert "together" in inline(*flags).stdout.decode()
        refused = inline(*flags, "--device-memory", "1GiB")
        assert refused.returncode == 2
        assert b"no memory of its own" in refused.stderr

    def test_a_prompt_cache_is_refused_as_by_what_runs(self, inline, native_package, tmp_path):
        flags = ("plan", "-m", native_package, "--prompt-cache", tmp_path / "prompts")
        result = inline(*flags, "--device", "rtx4060-laptop-8gb")
        assert result.returncode == 2
        assert b"A prompt cache cannot be used on a GPU. The rows are in the memory of GeForce RTX" in result.stderr
        assert inline(*flags, "--device", "rpi5-8gb").returncode == 0
        assert not (tmp_path / "prompts").exists()

    def test_too_little_memory_of_the_gpu_is_exit_code_4(self, inline, native_package):
        flags = ("plan", "-m", native_package, "--device", "rtx4060-laptop-8gb", "--device-memory", "300MiB")
        result = inline(*flags)
        assert result.returncode == 4
        assert b"on the GPU are missing" in result.stderr
        commands = [line for line in result.stdout.decode().splitlines() if line.startswith("  edge-rt ")]
        assert commands
        for command in commands:
            assert "--device-memory" in command
            assert inline("plan", *shlex.split(command)[2:]).returncode == 0

    def test_layers_on_either_side_are_named(self, inline, native_package, segmented):
        def plan(path, *more, device="rtx4060-laptop-8gb"):
            flags = ("plan", "-m", path, "--device", device, "--spec", "off", "--kv-type", "f16", *more)
            return inline(*flags), json.loads(inline(*flags, "--json").stdout)

        room = plan(native_package)[1]["device_minimum_bytes"]
        (shown, found), (_, whole) = (plan(native_package, "--device-memory", str(size)) for size in (room - 1, room))
        assert [one["choice"]["gpu_layers"] for one in (found, whole)] == [1, None]
        assert whole["notes"] == []
        text = "GeForce RTX 4060 laptop has memory for the last layer of 2; the CPU computes the others."
        assert found["notes"] == [text]
        assert found["given_up"][0].startswith("layers on the GPU: 1 of 2, ")
        assert found["device_total_bytes"] == sum(found["device_terms"].values()) < room
        assert found["terms"]["weights"] > 0 == whole["terms"]["weights"]
        assert "layers on the GPU" in shown.stdout.decode()
        assert "the last one of 2; the CPU computes the others" in shown.stdout.decode()
        assert ", with 1 layer there\n" in shown.stdout.decode()
        less = plan(native_package, "--device-memory", str(found["device_minimum_bytes"] - 1))[1]
        assert (less["fits"], less["choice"]["gpu_layers"], less["notes"]) == (False, 1, [])
        # So is a package with a graph for each part of the layers.
        size = plan(segmented.cut)[1]["device_minimum_bytes"] - 1
        shown, cut = plan(segmented.cut, "--device-memory", str(size))
        there, layers = cut["choice"]["gpu_layers"], cut["shape"]["num_layers"]
        assert (shown.returncode, cut["fits"]) == (0, True)
        assert 0 < there < layers
        assert f"the last {there} of {layers}; the CPU computes the others" in shown.stdout.decode()

    def test_a_budget_above_what_there_is_is_warned_of(self, inline, native_package):
        flags = ("plan", "-m", native_package, "--device", "rtx4060-laptop-8gb", "--device-memory")
        said = "The budget of device memory is more than GeForce RTX 4060 laptop has, "
        result = inline(*flags, "9GiB")
        assert (result.returncode, f"warning: {said}" in result.stderr.decode()) == (0, True)
        assert any(note.startswith(said) for note in json.loads(inline(*flags, "9GiB", "--json").stdout)["notes"])
        assert json.loads(inline(*flags, "2GiB", "--json").stdout)["notes"] == []
        assert "is more than" not in inline(*flags, "2GiB").stderr.decode()

    def test_a_small_package_is_counted_as_on_the_cpu(self, inline, small_package):
        result = inline("plan", "-m", small_package, "--device", "rtx4060-laptop-8gb")
        assert result.returncode == 0
        assert b"op profile native only" in result.stderr
        assert b"gpu_context" not in result.stdout

    def test_what_is_not_known_of_a_gpu_with_vulkan_is_told(self, inline, native_package):
        result = inline("plan", "-m", native_package, "--device", "steamdeck-16gb:vulkan", "--json")
        document = json.loads(result.stdout)
        assert document["device"]["gpu"]["is_unified"]
        assert document["device_terms"]["gpu_context"] == 64 << 20
        assert "No GPU has run the kernels for Vulkan yet" in document["notes"][0]
        own = inline("plan", "-m", native_package, "--device", "generic-gpu:vulkan", "--json")
        note = json.loads(own.stdout)["notes"][0]
        assert "No GPU has run the kernels for Vulkan yet" in note
        # Of the machine's memory it has none.
        for text in ("lends of the machine's memory", "read in place where the driver allows it"):
            assert (text in document["notes"][0], text in note) == (True, False)

    def test_webgpu_is_counted_as_on_the_cpu(self, inline, small_package):
        result = inline("plan", "-m", small_package, "--device", "webgpu", "--json")
        assert any("on cuda and vulkan only" in note for note in json.loads(result.stdout)["notes"])

    def test_a_name_that_is_nearly_right_is_suggested(self, inline, native_package):
        result = inline("plan", "-m", native_package, "--device", "jetson-orin-nano")
        assert result.returncode == 2
        assert b"Did you mean jetson-orin-nano-8gb" in result.stderr

    def test_what_runs_something_refuses_a_preset(self, inline, native_package):
        result = inline("generate", "-m", native_package, "-p", "Hello", "--device", "rtx4060-laptop-8gb")
        assert result.returncode == 2
        assert b"a machine to plan for" in result.stderr

    @pytest.mark.parametrize(
        ("device", "said"),
        [
            ("rtx4060-laptop-8gb", b"edge-rt plan --device"),
            ("vulcan", b"Did you mean vulkan?"),
        ],
    )
    def test_inspect_refuses_a_preset_and_says_what_it_is_for(self, inline, small_gguf, device, said):
        """Also for a checkpoint, whose nodes are placed nowhere."""
        result = inline("inspect", small_gguf, "--device", device)
        assert result.returncode == 2
        assert said in result.stderr

    def test_device_memory_is_refused_where_the_cpu_computes(self, inline, native_package):
        result = inline("generate", "-m", native_package, "-p", "Hello", "--device-memory", "1GiB")
        assert result.returncode == 2
        assert b"--device-memory" in result.stderr
