"""A block that predicts ahead: its logits against a reference in float64, what it follows, and how it drafts."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import ConfigError
from edge_rt.export import export_model
from edge_rt.export.checkpoint import read_checkpoint
from edge_rt.export.decoder.weights import place_weights
from edge_rt.export.op_profile import PROFILES
from edge_rt.export.opening import open_checkpoint
from edge_rt.export.quantise.decision import choose_weights
from edge_rt.export.writing import write_ahead_graph
from edge_rt.package.ahead import AheadInfo
from edge_rt.package.expert_sizes import expert_sizes
from edge_rt.package.manifest import BUILT_IN_CALIBRATION, WEIGHTS_FILE
from edge_rt.package.reader import open_package
from edge_rt.runtime.decode.draft import Accepted
from edge_rt.runtime.forward.io_binding_base import Part
from tests.helpers.ahead_models import CTX, OpenedPair as Opened, Reference, write_ahead_folder, write_ahead_gguf
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.packages import copied, edit_manifest, replace_file

TOLERANCE = 2e-4
"""Of the largest logit: matrices are float32, and the block's keys and values have 16 bits."""
EXACT = 5e-5
"""The same where these are float32, too."""
EXPERTS = ["qwen3_5_moe", "qwen3_next"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The package, and the reference."""
    require_native()
    path = tmp_path_factory.mktemp("ahead")
    folder, tensors = write_ahead_folder(path / "folder")
    export_model(folder, path / "package", profile="native", weights="f32", calibration=None)
    return path / "package", Reference(folder, tensors), folder


@pytest.fixture(scope="module")
def short(made, tmp_path_factory):
    """The package with a vocabulary of 64 tokens that can always be guessed."""
    package, _, folder = made
    path = copied(package, tmp_path_factory.mktemp("short"))
    source, decoder = open_checkpoint(folder)
    profile = PROFILES["native"]
    checkpoint = read_checkpoint(source, decoder, profile, choose_weights(source, decoder, "f32"))
    layout = place_weights(checkpoint.weights, decoder, profile)
    write_ahead_graph(checkpoint, layout, path / "new.onnx", AheadInfo("ahead.onnx", source.ahead, 64))
    data = (path / "new.onnx").read_bytes()
    (path / "new.onnx").unlink()
    replace_file(path, "ahead.onnx", data)
    edit_manifest(path, lambda document: document["ahead"].update(vocabulary=64))
    return path


def close(found, wanted, tolerance=TOLERANCE):
    known = ~np.isnan(found)
    return float(np.abs(found - wanted)[known].max() / np.abs(wanted).max()) < tolerance


def text(count, seed=0):
    return np.random.default_rng(seed).integers(3, 264, count).tolist()


@pytest.mark.parametrize("pieces", [(20,), (1,) * 20, (7, 13), (100, 50)], ids=str)
def test_the_first_steps_are_those_of_the_reference(made, pieces):
    """Behind a prompt in one pass, row by row, in pieces, and in more than a pass of the block takes."""
    opened, tokens, start = Opened(made[0]), text(sum(pieces) + 1), 0
    for count in pieces:
        opened.runner.forward(tokens[start : start + count], start, 1)
        start += count
    opened.ahead.begin(tokens[:-1])
    opened.ahead.observe(
        Accepted((tokens[-1],), (), 0, (0,)), opened.runner.forward(tokens[start - 1 : start], start - 1, 1)
    )
    opened.ahead.extend(tokens[-1:])
    drafted = [17, 5]
    wanted = made[1].steps(tokens, drafted)
    found = [opened.logits(drafted[:count]) for count in range(3)]
    assert all(map(close, found, wanted))
    # Asked again, and behind a draft that is given up.
    assert opened.logits().tobytes() == found[0].tobytes()
    assert close(opened.logits([9]), made[1].steps(tokens, [9])[1])


@pytest.fixture(scope="module", params=EXPERTS)
def with_experts(request, tmp_path_factory):
    """The name of a case with experts, its package, and the reference."""
    require_native()
    path = tmp_path_factory.mktemp("experts")
    folder, tensors = write_ahead_folder(path / "folder", request.param, is_stacked=request.param == "qwen3_5_moe")
    export_model(folder, path / "package", profile="native", weights="f32", calibration=None)
    return request.param, path / "package", Reference(folder, tensors)


def test_blocks_with_experts_are_those_of_the_reference(with_experts, made, tmp_path):
    """In float32 the first steps are, and so are those of a GGUF file of the same model."""
    name, package, reference = with_experts
    tokens, drafted = text(31), [17, 5]
    wanted = reference.steps(tokens, drafted)
    export_model(write_ahead_gguf(tmp_path / "m.gguf", name), tmp_path / "g", profile="native", weights="f32",
                 calibration=None)  # fmt: skip
    for path in (package, tmp_path / "g"):
        opened = Opened(path, "f32")
        opened.know(tokens, pieces=(1, 7))
        assert all(close(opened.logits(drafted[:count]), wanted[count], EXACT) for count in range(3))
    dense = Opened(made[0], "f32")
    dense.know(tokens)
    wanted = made[1].steps(tokens, drafted)
    assert all(close(dense.logits(drafted[:count]), wanted[count], EXACT) for count in range(3))


def test_texts_of_models_with_experts_are_those_of_plain_decoding(with_experts):
    """With experts in memory, and read into the smallest cache as they are wanted."""
    _, path, _ = with_experts
    found = []
    least = expert_sizes(open_package(path)).least_bytes
    for spec, experts in (("off", "resident"), ("mtp", "resident"), ("mtp", least)):
        model = load_package(path, ctx=CTX, spec=spec, experts=experts)
        found.append(model.generate("The boat left", max_tokens=40, temperature=0.0).text)
        model.close()
    assert found[0] == found[1] == found[2]


def test_accepted_rows_of_a_tree_are_followed(made):
    """A pass over two certain rows and a tree; its path, and what came before it, are the text."""
    opened, tokens = Opened(made[0]), text(12)
    opened.runner.forward(tokens[:6], 0, 1)
    opened.ahead.begin(tokens[:8])
    nodes, parents = [tokens[8], 40, tokens[9], 41], [-1, -1, 0, 0]
    places = [-1, 0, *(1 if parent < 0 else 2 + parent for parent in parents)]
    outputs = opened.runner.forward([*tokens[6:8], *nodes], 6, 5, parents=places)
    opened.ahead.observe(Accepted((tokens[8], tokens[9], tokens[10]), (0, 2), 2, (0, 1, 2)), outputs)
    opened.ahead.extend(tokens[8:11])
    found = [opened.logits(), opened.logits([33])]
    assert all(map(close, found, made[1].steps(tokens[:11], [33])))


def test_a_text_that_goes_on_otherwise(made):
    opened, first, other = Opened(made[0]), text(30), text(12, 1)
    opened.runner.forward(first[:29], 0, 1)
    opened.ahead.begin(first)
    tokens = [*first[:10], *other]
    opened.runner.forward(tokens[10:-2], 10, 1)
    opened.ahead.begin(tokens[:-1])
    outputs = opened.runner.forward(tokens[-2:-1], len(tokens) - 2, 1)
    opened.ahead.observe(Accepted((tokens[-1],), (), 0, (0,)), outputs)
    opened.ahead.extend(tokens[-1:])
    # The state before the other text was given up when the first one went on.
    assert close(opened.logits(), made[1].steps(tokens, [], missing=(9,))[0])


def test_rows_of_another_text_are_forgotten(made):
    """As behind rows that came from a file: the block goes on with what it sees of the text from then on."""
    opened, stale, tokens = Opened(made[0]), text(10, 2), text(14, 3)
    opened.runner.forward(stale, 0, 1)
    opened.runner.listener = None
    opened.runner.forward(tokens[:10], 0, 1)
    opened.runner.listener = opened.ahead.passed
    outputs = opened.runner.forward(tokens[10:13], 10, 1)
    opened.ahead.begin(tokens[:13])
    assert opened.ahead.room() == 0
    opened.ahead.observe(Accepted((tokens[13],), (), 0), outputs)
    opened.ahead.extend(tokens[13:])
    assert close(opened.logits(), made[1].steps(tokens, [], missing=range(12))[0])


def test_tokens_of_the_prompt_can_be_guessed(made, short):
    whole, few, tokens = Opened(made[0]), Opened(short), text(25)
    found = []
    for opened in (whole, few):
        outputs = opened.runner.forward(tokens[:-1], 0, 1)
        opened.ahead.begin(tokens[:-1])
        opened.ahead.observe(Accepted((tokens[-1],), (), 0, (0,)), outputs)
        opened.ahead.extend(tokens[-1:])
        found.append(opened.logits())
    known = ~np.isnan(found[1])
    assert set(np.flatnonzero(known)) == {*range(64), *tokens[:-1]}
    np.testing.assert_array_equal(found[1][known], found[0][known])


def test_an_empty_pass_of_several_parts_is_not_followed(made):
    opened = Opened(made[0])
    opened.ahead.passed(Part([1, 2], 0, 1), opened.runner.forward([1, 2], 0, 1).split([1])[0])
    assert opened.ahead.room() == 0


@pytest.mark.parametrize("which", ["made", "short"])
def test_texts_are_those_of_plain_decoding(which, made, short):
    path = made[0] if which == "made" else short
    plain = load_package(path, ctx=CTX, spec="off")
    wanted = plain.generate("The boat left", max_tokens=60, temperature=0.0).text
    plain.close()
    for spec in ("mtp", "auto"):
        model = load_package(path, ctx=CTX, spec=spec)
        found = [model.generate("The boat left", max_tokens=60, temperature=0.0) for _ in range(2)]
        assert [one.text for one in found] == [wanted, wanted]
        model.close()


def test_matrices_are_rounded_with_moments_of_the_calibration_text(made, tmp_path):
    found = []
    for calibration in (None, BUILT_IN_CALIBRATION):
        path = tmp_path / str(calibration)
        export_model(made[2], path, profile="native", weights="int4", calibration=calibration)
        package = open_package(path)
        place = package.tensors[package.manifest.ahead.graph]["ahead.fc.tiles"]
        found.append(package.file(WEIGHTS_FILE).read_bytes()[place.offset : place.offset + place.length])
    assert found[0] != found[1]


def test_a_package_without_a_block_refuses_the_mode(made, tmp_path):
    folder, _ = write_ahead_folder(tmp_path / "folder", left_out=("mtp.norm.weight",))
    export_model(folder, tmp_path / "package", profile="native", weights="f32", calibration=None)
    package = open_package(tmp_path / "package")
    assert package.manifest.ahead is None
    with pytest.raises(ConfigError, match="no block that predicts further ahead"):
        load_package(tmp_path / "package", ctx=CTX, spec="mtp")
