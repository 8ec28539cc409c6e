"""Models with experts on the emulated GPU: every answer is the CPU's."""

from __future__ import annotations

from edge_rt.errors import ConfigError
from tests.gpu.emulated import main
from tests.gpu.models import DEVICE, expect, opened
from tests.gpu.plan_worker import check
from tests.gpu.state_worker import compare, package

# Plain ones; beside states, and a feed-forward beside them; chosen scores, limits and biases; sigmoids with a choice
# bias, beside convolutions; groups and rows of their own; a gate of what is shared.
CASES = ("qwen3_moe", "granite_h", "gpt_oss", "lfm2_moe", "nemotron_h_latent", "qwen3_next")


def case_texts(gpu):
    for name in CASES:
        assert compare(gpu, package(name), spec="suffix") > 0, name


def case_types(gpu):
    """Weights of other types, floats among them."""
    for weights in ("int4", "f16"):
        compare(gpu, package("qwen3_moe", weights=weights), spec="off")


def case_planned(gpu):
    for name in ("qwen3_moe", "nemotron_h_latent"):
        check(gpu, package(name), spec="suffix", kv="f16", generated=8)


def case_refused(gpu):
    """Experts that are read while the model runs are the CPU's."""
    path = package("qwen3_moe")
    expect(ConfigError, "on a GPU", lambda: opened(gpu, path, experts=1 << 20).__enter__())


if __name__ == "__main__":
    main(globals(), **DEVICE)
