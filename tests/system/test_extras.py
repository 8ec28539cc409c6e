from __future__ import annotations

import importlib.metadata

import pytest

from edge_rt.system.machine import install_command

REQUIREMENTS = (
    "numpy>=1.26",
    'matplotlib>=3.8; extra == "plot"',
    "onnxruntime-gpu[cuda,cudnn]>=1.24 ; extra == 'gpu'",
    'torch>=2.11; python_version < "4" and extra == "train"',
)


@pytest.mark.parametrize(
    ("extras", "command"),
    [
        (("plot",), "pip install 'matplotlib>=3.8'"),
        (("plot", "gpu"), "pip install 'matplotlib>=3.8' 'onnxruntime-gpu[cuda,cudnn]>=1.24'"),
        (("train",), "pip install 'torch>=2.11'"),
    ],
)
def test_packages_are_named_themselves(extras, command):
    assert install_command(*extras, requirements=REQUIREMENTS) == command


def test_without_metadata_the_command_is_one_for_a_checkout():
    assert install_command("cpu", upgrade=True, requirements=()) == "pip install --upgrade '.[cpu]'"


def test_every_extra_of_the_project_is_found():
    for extra in importlib.metadata.metadata("edge-rt").get_all("Provides-Extra"):
        assert ".[" not in install_command(extra)
