"""Models with experts: every drafter gives plain texts, and a pass over one row reads those alone that it has."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from edge_rt.errors import ConfigError
from edge_rt.export import export_model
from edge_rt.memory.shape import shape_of
from edge_rt.package.reader import open_package
from tests.helpers.drafted_texts import PROMPT, check_drafted
from tests.helpers.family_cases import load_case, write_folder, write_gguf
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.small import GREEDY

CASES = {
    name: load_case(name) for name in ("qwen3_moe", "olmoe", "granitemoe", "lfm2_moe", "gpt_oss", "gemma4_text_experts")
}
OPTIONS = {"profile": "native", "calibration": None, "accept_loss": True}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    require_native()
    folder = tmp_path_factory.mktemp("moe")
    for name, case in CASES.items():
        export_model(write_folder(folder / f"{name}-model", case), folder / name, weights="int8", **OPTIONS)
    source = folder / "qwen3_moe-model"
    export_model(source, folder / "nested", weights="nested8", **OPTIONS)
    export_model(source, folder / "int4", weights="int4", **OPTIONS)
    export_model(source, folder / "cut", weights="int8", exits=(1,), **OPTIONS)
    return folder


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.gguf is None])
def test_a_file_becomes_the_package_of_the_folder(name, packages, tmp_path):
    write_gguf(tmp_path / "m.gguf", CASES[name])
    export_model(tmp_path / "m.gguf", tmp_path / "p", weights="int8", **OPTIONS)
    weights = [folder / "weights.bin" for folder in (packages / name, tmp_path / "p")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        *(("qwen3_moe", spec) for spec in ("suffix", "ngram", "recycling", "auto")),
        ("nested", "self"),
        ("int4", "auto"),
        ("cut", "exit"),
        *((name, "suffix") for name in ("olmoe", "granitemoe", "lfm2_moe", "gpt_oss", "gemma4_text_experts")),
    ],
)
def test_drafted_texts_are_the_plain_ones(packages, name, spec):
    with load_package(packages / name, spec=spec, kv="int4x2" if spec == "self" else "f16") as model:
        drafted, _ = check_drafted(model, max_tokens=50)
    assert drafted > 0


def test_a_row_reads_the_experts_that_it_has(packages):
    manifest = open_package(packages / "qwen3_moe").manifest
    shape, experts = shape_of(manifest, None), manifest.model.layers[0].experts
    whole = experts.count * 3 * manifest.model.hidden_size * experts.each.size * manifest.model.num_layers
    idle = whole * (experts.count - experts.chosen) // experts.count * 34 // 32  # of Q8_0
    unread = shape.weights_bytes - shape.rotation_bytes - shape.read_bytes
    assert abs(unread - idle) < 0.15 * shape.weights_bytes


def test_what_is_not_there_yet_is_said(packages, tmp_path):
    with pytest.raises(ConfigError, match="A size cannot be met by a model with experts"):
        export_model(packages / "qwen3_moe-model", tmp_path / "p", size="1 MB", **OPTIONS)


def test_answers_that_share_passes_are_those_of_each_alone(packages):
    prompts = [[token + n for token in PROMPT[:30]] for n in range(4)]
    with load_package(packages / "qwen3_moe", slots=3) as model, ThreadPoolExecutor(len(prompts)) as threads:
        assert model.slots == 3

        def answer(prompt):
            return model.generate(prompt, max_tokens=40, **GREEDY).token_ids

        alone = [answer(prompt) for prompt in prompts]
        assert list(threads.map(answer, prompts)) == alone
