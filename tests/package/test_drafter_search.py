"""Drafters for a package: where they are looked for, and why one does not fit."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from edge_rt.errors import InvalidDrafter
from edge_rt.package.documents import FileInfo
from edge_rt.package.drafter import DraftTarget
from edge_rt.package.drafter_search import find_drafters, installed_drafters, mismatch, open_fitting
from edge_rt.package.manifest import Segment
from edge_rt.package.reader import open_package
from tests.helpers.packages import copied
from tests.helpers.tiny_drafter import EXIT_INFO, INFO, for_package, write_drafter
from tests.helpers.tiny_package import MANIFEST, write as write_package

NATIVE = dataclasses.replace(MANIFEST, op_profile="native", kv_formats=("f16",))
TOKENIZER = FileInfo(2, INFO.target.tokenizer_sha256)


@pytest.fixture
def package(tmp_path):
    return write_package(tmp_path / "tiny", manifest=NATIVE)


@pytest.fixture
def installed(tmp_path):
    folder = tmp_path / "installed"
    folder.mkdir()
    return folder


def test_none(package, installed):
    assert find_drafters(package, installed) == ()
    assert find_drafters(package, installed / "missing") == ()


def test_those_of_the_package_come_before_installed_ones(package, installed):
    for name in ("b", "a"):
        for_package(package.path / "drafters" / name, package.manifest)
    for_package(installed / "c", package.manifest)
    found = find_drafters(package, installed)
    assert [(one.path.name, one.origin, one.reason) for one in found] == [
        ("a", "package", None),
        ("b", "package", None),
        ("c", "installed", None),
    ]
    assert all(one.drafter is not None for one in found)
    # The package is the same, and complete, whatever lies beside it.
    assert open_package(package.path).id == package.id


def test_links_and_other_folders_are_left_out(package, installed, tmp_path):
    elsewhere = for_package(tmp_path / "elsewhere", package.manifest).path
    folder = package.path / "drafters"
    folder.mkdir()
    (folder / "linked").symlink_to(elsewhere)
    (folder / "empty").mkdir()
    (folder / "file").write_text("x")
    assert find_drafters(package, installed) == ()
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    for_package(tmp_path / "moved" / "real", package.manifest)
    assert find_drafters(package, installed) == ()


def test_one_that_is_damaged_says_so(package, installed):
    for_package(installed / "bad", package.manifest).weights.unlink()
    (found,) = find_drafters(package, installed)
    assert found.drafter is None
    assert "file 'weights.bin' is missing" in found.reason


def test_installed_ones_for_models_of_other_names_are_left_out(package, installed):
    target = dataclasses.replace(DraftTarget.of(package.manifest), name="Another", hidden_size=128)
    for folder in (installed, package.path / "drafters"):
        write_drafter(folder / "other", dataclasses.replace(INFO, target=target))
    (found,) = find_drafters(package, installed)
    assert found.origin == "package"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"source_sha256": "1" * 64}, "checkpoint 111111111111; this package was made from 000000000000"),
        (
            {"quantisation": {"embedding": "Q8_0"}},
            "the types embedding Q8_0; this package has embedding Q8_0, attention",
        ),
        ({"tokenizer_sha256": "2" * 64}, "its tokenizer is 222222222222; the package's is 44136fa355b3"),
        ({"hidden_size": 128}, "its hidden_size is 128; the package's is 64"),
        ({"vocab_size": 420}, "its vocab_size is 420; the package's is 419"),
        ({"num_layers": 3}, "its num_layers is 3; the package's is 2"),
    ],
)
def test_another_model(package, installed, tmp_path, change, reason):
    target = dataclasses.replace(DraftTarget.of(package.manifest), **change)
    drafter = write_drafter(installed / "other", dataclasses.replace(INFO, target=target))
    (found,) = find_drafters(package, installed)
    assert found.drafter == drafter
    assert reason in found.reason
    with pytest.raises(InvalidDrafter, match="trained for another model"):
        open_fitting(drafter.path, package)


def cut_at(exits):
    """Return the manifest of a package of six layers with exits."""
    ends = [*exits, 6]
    segments = tuple(
        Segment(f"part {end}", f"model.{end}.onnx", first, end) for first, end in zip([0, *ends], ends, strict=False)
    )
    decoder = dataclasses.replace(NATIVE.decoder, pattern=(0,) * 6)
    return dataclasses.replace(NATIVE, decoder=decoder, segments=segments, files={"tokenizer.json": TOKENIZER})


@pytest.mark.parametrize(
    ("exits", "reason"),
    [((), "its adapters are for the exits behind the layers 1, 4; the package has none"), ((2,), "the package has 2")],
)
def test_adapters_of_exits_that_a_package_does_not_have(installed, exits, reason):
    package = SimpleNamespace(path=installed.parent / "package", manifest=cut_at(exits))
    drafter = write_drafter(installed / "exits", dataclasses.replace(EXIT_INFO, target=DraftTarget.of(cut_at(()))))
    (found,) = find_drafters(package, installed)
    assert reason in found.reason
    with pytest.raises(InvalidDrafter, match=r"nothing to draft with.*Export the model with --exits 1,4"):
        open_fitting(drafter.path, package)


@pytest.mark.parametrize("exits", [(1, 4), (2, 4), (1, 2)])
def test_adapters_fit_where_one_of_their_exits_is(installed, exits):
    package = SimpleNamespace(path=installed.parent / "package", manifest=cut_at(exits))
    drafter = write_drafter(installed / "exits", dataclasses.replace(EXIT_INFO, target=DraftTarget.of(cut_at(()))))
    assert open_fitting(drafter.path, package) == drafter


def test_what_fits_is_opened(package, tmp_path):
    drafter = for_package(tmp_path / "good", package.manifest)
    assert open_fitting(drafter.path, package) == drafter
    assert isinstance(drafter.info.target, DraftTarget)


def test_only_native_packages_have_hidden_states(tmp_path):
    portable = write_package(tmp_path / "portable").manifest
    reason = mismatch(DraftTarget.of(portable), portable)
    assert reason == "graphs of the op profile portable return no hidden states to draft from"


def test_the_place_of_installed_drafters_is_beside_the_recipes():
    assert installed_drafters().name == "drafters"
    assert list(installed_drafters().parent.glob("*.json"))


def test_a_copy_of_a_package_keeps_its_drafters(package, installed, tmp_path):
    for_package(package.path / "drafters" / "a", package.manifest)
    copy = open_package(copied(package.path, tmp_path))
    (found,) = find_drafters(copy, installed)
    assert (found.origin, found.reason) == ("package", None)
