"""Checks edge-rt on a GPU, in stages of less than ten minutes each; figures go to a folder.

``bits`` compares with the CPU's bits, and comes first; ``verify`` compares texts. ``speed`` and ``launches`` time
passes of random weights in the shape of a model, ``memory`` compares a plan with what is taken; ``make`` makes their
packages::

    cmake -S . -B build/gpu -G Ninja -DEDGE_RT_BUILD_TESTS=ON && cmake --build build/gpu
    python benchmarks/on_gpu.py bits --build build/gpu --out figures
    python benchmarks/on_gpu.py verify --out figures --package my-package --prompts question.jsonl
    python benchmarks/on_gpu.py make --out figures --shape 8b
    python benchmarks/on_gpu.py speed --out figures --shape 8b

``--device vulkan`` does it by Vulkan, without it the GPU is an NVIDIA one by CUDA. ``bits`` and whatever is
``--emulated`` need a build, the other stages the installed edge-rt alone, with its extra ``cuda`` for that. With
``--shape tiny`` and ``--emulated``, or ``--device vulkan:0`` and a driver that is a program on the CPU, every stage
runs where there is no GPU; its times mean nothing then.
"""

from __future__ import annotations

import argparse
from pathlib import Path

STAGES = ("bits", "verify", "make", "speed", "launches", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, vulkan, vulkan:1")
    parser.add_argument("--out", type=Path, required=True, help="folder of results, and of the packages that are made")
    parser.add_argument("--build", type=Path, help="folder that CMake built with -DEDGE_RT_BUILD_TESTS=ON")
    parser.add_argument("--emulated", action="store_true", help="the build's emulated driver instead of a GPU")
    parser.add_argument("--only", default="", help="bits: run the parts whose name holds this")
    parser.add_argument("--shape", default="8b", choices=("8b", "4b", "1b", "tiny"))
    parser.add_argument("--mix", default="Q4_0", choices=("Q4_0", "Q4_K_M", "Q8_0"), help="types of random weights")
    parser.add_argument("--rounds", type=int, default=100, help="how often a pass is timed")
    parser.add_argument("--package", type=Path, help="verify: a native package; random weights of the shape otherwise")
    parser.add_argument("--prompts", type=Path, help="verify: a file of prompts; a few built-in ones otherwise")
    parser.add_argument("--limit", type=int, default=60, help="verify: how many prompts")
    parser.add_argument("--tokens", type=int, default=128, help="verify: most tokens of an answer")
    given = parser.parse_args()
    if given.build is None and (given.stage == "bits" or given.emulated):
        parser.error("--build names the folder of a build, which bits and --emulated need")
    from gpu_target import Target

    from edge_rt.device.names import CUDA, parse_device

    device = parse_device(given.device)
    if not device.is_own or (given.emulated and device.kind != CUDA):
        parser.error("--device is cuda or vulkan, and --emulated a GPU of cuda")
    if given.stage == "bits" and device.index:
        parser.error("bits takes the first GPU; CUDA_VISIBLE_DEVICES and VK_DRIVER_FILES say which that is")
    given.out.mkdir(parents=True, exist_ok=True)
    build = None if given.build is None else given.build.resolve()
    run(given, Target(device, given.out.resolve(), build, given.emulated))


def run(given: argparse.Namespace, target) -> None:
    """Run one stage; exit code 1 if it has found something wrong."""
    if given.stage == "bits":
        from gpu_bits import run_bits

        run_bits(target, given.only)
    elif given.stage == "verify":
        from gpu_verify import Asked, run_verify

        from edge_rt.package.reader import open_package

        package = target.package(given.shape, given.mix) if given.package is None else open_package(given.package)
        run_verify(target, package, Asked(given.prompts, given.limit, given.tokens))
    elif given.stage == "make":
        target.package(given.shape, given.mix)
    elif given.stage == "memory":
        from gpu_memory import run_memory

        run_memory(target, given.shape, given.mix)
    else:
        from gpu_speed import run_launches, run_speed

        stage = run_speed if given.stage == "speed" else run_launches
        stage(target, given.shape, given.mix, given.rounds)


if __name__ == "__main__":
    main()
