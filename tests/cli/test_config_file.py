"""What the configuration file says where flags do not."""

from __future__ import annotations

import json

import pytest

from edge_rt.cli.options.generation import SamplingFlags
from edge_rt.cli.options.groups import LoadFlags, PlaceFlags

TEXT = 'model = "{}"\nctx = 64\nthreads = 3\n[sampling]\ntemperature = 0\nrepetition_penalty = 1.2\n'


@pytest.fixture
def config(tmp_path, native_package):
    path = tmp_path / "config.toml"
    path.write_text(TEXT.format(native_package))
    return path


def test_flags_go_before_the_file(config, native_package):
    places = (PlaceFlags(config=config),)
    load = LoadFlags().completed(places)
    assert (load.model, load.reference, load.ctx, load.threads) == (None, str(native_package), 64, 3)
    load = LoadFlags(model="other", ctx=32, threads=1).completed(places)
    assert (load.reference, load.ctx, load.threads) == ("other", 32, 1)
    assert SamplingFlags().completed(places) == SamplingFlags(temp=0, repeat_penalty=1.2)
    assert SamplingFlags(temp=0.5, repeat_penalty=1.0, top_k=3).completed(places) == SamplingFlags(
        temp=0.5, repeat_penalty=1.0, top_k=3
    )
    assert LoadFlags(ctx=5).completed(()).ctx == 5


def test_experts_of_the_file_are_those_of_models_that_have_some(config, inline, native_package):
    config.write_text(f'experts = "1MiB"\n{TEXT.format(native_package)}')
    assert inline("plan", "--config", config).returncode == 0
    refused = inline("plan", "--config", config, "--experts", "1MiB")
    assert refused.returncode == 2
    assert b"no experts" in refused.stderr


def test_devices_of_the_file_are_those_of_commands_that_compute(config, inline, native_package):
    text = TEXT.format(native_package).replace("threads = 3\n", "")
    config.write_text(f'device = "cuda:1"\ndevice_memory = "2GiB"\non_device_error = "cpu"\n{text}')
    places = PlaceFlags(config=config)
    load = LoadFlags().completed((places,))
    options = load.options(places, answers=True)
    assert (str(options.device_name), options.on_device_error) == ("cuda:1", "cpu")
    # No CPU refuses it, as it does the flag.
    assert (options.device_memory, options.usual_device_memory) == (None, 2 << 30)
    # A measurement on a GPU is not gone on with on the CPU.
    assert load.options(places).on_device_error == "error"
    flags = LoadFlags(device="auto", device_memory="1GiB", on_device_error="error").completed((places,))
    options = flags.options(places, answers=True)
    assert (str(options.device_name), options.device_memory, options.on_device_error) == ("auto", 1 << 30, "error")
    command = ("generate", "-p", "Hello", "-n", "2", "--config", config)
    assert inline(*command, "--device", "cpu").returncode == 0
    # Other machines are planned for as they are, and what a package is needs no GPU.
    for other in ("rpi5-8gb", "cpu"):
        assert inline("plan", "--config", config, "--device", other).returncode == 0
    planned = inline("plan", "--config", config, "--device", "rtx4060-laptop-8gb", "--json")
    assert json.loads(planned.stdout)["device_budget_bytes"] == 2 << 30
    assert "placement" not in json.loads(inline("inspect", "--config", config, "--json").stdout)
    config.write_text(f'device = "vulcan"\n{text}')
    refused = inline(*command)
    assert refused.returncode == 2
    assert b"config.toml: the value of 'device' is no device: 'vulcan'. Did you mean vulkan?" in refused.stderr


PRESET = (
    '{}[presets.poet]\nmodel = "{}"\nsystem = "Rhyme."\nctx = 32\nmax_tokens = 2\nsampling = {{ temperature = 0.3 }}\n'
)


def test_a_preset_is_used_like_a_model(config, inline, native_package):
    config.write_text(PRESET.format("ctx = 64\n[sampling]\ntop_k = 5\n", native_package))
    command = ("generate", "-p", "Hello", "--config", config, "--seed", "1", "--json")
    document = json.loads(inline(*command, "-m", "poet").stdout)
    assert (document["model"]["context_tokens"], document["usage"]["completion_tokens"]) == (32, 2)
    assert (document["options"]["temperature"], document["options"]["top_k"]) == (0.3, 5)
    plain, flags = (
        json.loads(inline(*command, *more).stdout)
        for more in (("-m", native_package, "-n", "2"), ("-m", "poet", "--ctx", "48", "--temp", "0", "--system", ""))
    )
    assert plain["usage"]["prompt_tokens"] < document["usage"]["prompt_tokens"]
    assert (flags["model"]["context_tokens"], flags["options"]["temperature"]) == (48, 0)
    talk = json.loads(inline("chat", "poet", "--config", config, "--json", stdin=b"Hello\n").stdout)
    assert talk["messages"][0] == {"role": "system", "content": "Rhyme."}
    assert json.loads(inline("inspect", "poet", "--config", config, "--json").stdout)["path"] == str(native_package)


def test_a_preset_is_the_usual_model(config, inline, native_package):
    config.write_text(PRESET.format('model = "poet"\n', native_package))
    document = json.loads(inline("generate", "-p", "Hello", "--config", config, "--json").stdout)
    assert document["model"]["context_tokens"] == 32
    # Without a chat template's place for it, a raw prompt has no system message.
    assert inline("generate", "-p", "Hello", "--raw", "--config", config).returncode == 0


def test_a_command_reads_it_once(config, tmp_path):
    config.write_text('store = "s"\nmemory = "1GiB"\nctx = 64\n')
    places = PlaceFlags(config=config)
    load = LoadFlags().completed((places,))
    config.write_text("= broken")
    assert SamplingFlags().completed((places,)) == SamplingFlags()
    assert (load.budget_bytes(places), places.open_store().root) == (1 << 30, tmp_path / "s")


def test_a_store_that_is_given_goes_before_a_broken_file(config, tmp_path):
    config.write_text("= broken")
    assert PlaceFlags(config=config, store=tmp_path / "flag").open_store().root == tmp_path / "flag"


def test_commands_read_it(inline, config, native_package):
    config.write_text(TEXT.format(native_package).replace("threads = 3\n", ""))
    command = ("generate", "-p", "Hello", "-n", "3", "--config", config, "--json")
    for flags, ctx, temperature in (((), 64, 0), (("--ctx", "32", "--temp", "0.5"), 32, 0.5)):
        document = json.loads(inline(*command, *flags).stdout)
        assert document["model"]["context_tokens"] == ctx
        options = document["options"]
        assert (options["temperature"], options["repetition_penalty"]) == (temperature, 1.2)
    for verb in ("inspect", "pull"):
        # The argument is no second model beside that of the file.
        assert "given twice" not in inline(verb, "no-such-model", "--config", config).stderr.decode()
    assert json.loads(inline("inspect", "--config", config, "--json").stdout)["path"] == str(native_package)
