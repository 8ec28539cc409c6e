"""``edge-rt verify`` on a device: what it remembers allows speculation there in later loads."""

from __future__ import annotations

import io
import json

import edge_rt
from edge_rt.cli.commands.verify import VerifyRun
from edge_rt.cli.render.console import Terminal
from edge_rt.measure.prompts import Prompt
from edge_rt.package.reader import open_package
from edge_rt.package.spec_modes import Drafts
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.model import Model
from edge_rt.runtime.speculation.stored_costs import user_verified
from tests.device.test_provider import TWO
from tests.helpers.onnxruntime_version import needs_onnxruntime
from tests.helpers.portable_cuda import with_stand_in
from tests.helpers.webgpu import require_webgpu

pytestmark = needs_onnxruntime(1, 24)
PROMPT = "the sea was calm and the sea was calm and the sea was"


def loaded(package, options):
    """Return the key of a verification, and what is drafted."""
    with Model(package, options) as model:
        return model.verification, model.speculation.drafts


def test_kept_for_this_device_and_package_until_a_difference_is_found(inline, small_package):
    """``inline`` keeps what is stored away from the user's."""
    package, asked = open_package(small_package), LoadOptions(device="cuda", ctx=256, gpu_providers=with_stand_in(TWO))
    error = io.StringIO()
    run = VerifyRun(
        Terminal(io.StringIO(), error),
        package,
        asked.but(unverified=True),
        [Prompt(0, PROMPT)],
        GenerationConfig(max_tokens=24, temperature=0.0, repetition_guard=False),
        ["ngram"],
        ["f32"],
        raw=True,
    )
    plain, drafted = run.execute(None)
    assert plain.token_ids == drafted.token_ids
    assert drafted.drafted > 0
    key, drafts = loaded(package, asked)
    assert drafts is Drafts.NOTHING
    run.keep_verification(is_same=True, drafted=0)
    assert "nothing was drafted" in error.getvalue()
    assert user_verified().load(key) is None
    run.keep_verification(is_same=True, drafted=drafted.drafted)
    assert user_verified().load(key)["drafted"] == drafted.drafted
    assert loaded(package, asked)[1] is Drafts.ASKED_CHAINS
    # Another GPU.
    assert loaded(package, asked.but(device="cuda:1"))[1] is Drafts.NOTHING
    run.keep_verification(is_same=False, drafted=drafted.drafted)
    assert user_verified().load(key) is None


def test_a_verification_on_the_cpu_keeps_nothing(inline, small_package):
    result = inline("verify", "-m", small_package, "--spec", "ngram", "--limit", "1", "-n", "4")
    assert result.returncode == 0
    package = open_package(small_package)
    key, _ = loaded(package, LoadOptions(device="cuda", ctx=64, gpu_providers=with_stand_in(TWO)))
    assert not user_verified().path(key).parent.exists()


def test_the_command_on_webgpu(inline, small_package, tmp_path):
    require_webgpu(small_package)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"{PROMPT}\n")
    options = ("--spec", "ngram", "--prompts", prompts, "-n", "24", "--raw", "--ctx", "256", "--json")
    result = inline("verify", "-m", small_package, "--device", "webgpu", *options)
    document = json.loads(result.stdout)
    is_same = document["identical"] == document["prompts"]
    assert document["by_drafter"]["ngram"]["drafted"] > 0
    assert result.returncode == (0 if is_same else 1)
    with edge_rt.load(small_package, device="webgpu", ctx=256) as model:
        assert (user_verified().load(model.verification) is not None) == is_same
        assert model.speculation.drafts is (Drafts.ASKED_CHAINS if is_same else Drafts.NOTHING)
