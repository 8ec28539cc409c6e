"""Model families cut at exits: windows in some layers, layers of several operators, rotations that are inputs."""

from __future__ import annotations

import pytest

from edge_rt.export import export_model
from edge_rt.package.reader import open_package
from tests.helpers.family_cases import load_case, write_folder
from tests.helpers.native_profile import require_native
from tests.helpers.passes import same_bits
from tests.helpers.segmented import CutPasses, whole_passes

NAMES = (
    "qwen3_window",
    "gemma2",
    "gemma3_text",
    "phi3_partial",
    "ministral3",
    "smollm3_window",
    "stablelm",
    "lfm2_bias",
)
CONTEXT = 96
LARGEST_PASS = 16
TREE = [-1, 0, 0, 1, 2, 4, 1]


@pytest.fixture(scope="module", params=NAMES)
def packages(request, tmp_path_factory):
    """A package, the same cut behind every layer, and the tokens that there are."""
    require_native()
    folder = tmp_path_factory.mktemp(request.param)
    case = load_case(request.param)
    source = write_folder(folder / "model", case)
    options = {"profile": "native", "weights": "int8", "calibration": None, "accept_loss": True}
    export_model(source, folder / "whole", **options)
    model = open_package(folder / "whole").manifest.model
    export_model(source, folder / "cut", exits=range(1, min(model.num_layers, 9)), **options)
    return folder / "whole", folder / "cut", model.vocab_size


@pytest.mark.parametrize("kv_format", ["f16", "int8"])
def test_bits_of_one_graph(packages, kv_format):
    whole, cut, size = packages
    options = {"capacity": CONTEXT, "largest_pass": LARGEST_PASS}
    cut, whole = CutPasses(cut, kv_format, **options), whole_passes(whole, kv_format, **options)
    token_ids = [(5 + 41 * i) % size for i in range(80)]
    same_bits(cut.append_in(16, token_ids[:60]), whole.append_in(16, token_ids[:60]))
    for segments in range(1, cut.runner.num_segments):
        cut.draft(token_ids[60:63], segments)
        tree = (token_ids[60:67], [-1, 0, 1, 0, 2, 4, 1], [0, 1])
        same_bits(cut.tree(*tree), whole.tree(*tree))
    same_bits(cut.tree(token_ids[60:67], TREE, [0, 2]), whole.tree(token_ids[60:67], TREE, [0, 2]))
    same_bits(cut.append(token_ids[70:74]), whole.append(token_ids[70:74]))
