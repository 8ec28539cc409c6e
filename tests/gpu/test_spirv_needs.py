"""What the committed Vulkan kernels ask of a device: what all GPUs with Vulkan 1.2 and buffer addresses have."""

from __future__ import annotations

from pathlib import Path

from tools.spirv import instructions

SOURCES = Path(__file__).parents[2] / "csrc"
CAPABILITY, TYPE_INT, TYPE_FLOAT = 17, 21, 22  # of the SPIR-V specification
SHADER, STORAGE_16, ADDRESSES, DOT_INPUT, DOT = 1, 4433, 5347, 6018, 6019
EVERYWHERE, PACKED_DOTS = {SHADER, STORAGE_16, ADDRESSES}, {DOT_INPUT, DOT}


def test_kernels_ask_for_nothing_that_a_class_of_gpus_lacks():
    """No bytes (Raspberry Pi 5, Adreno before 750), no other float than float32, no integers of 64 bits."""
    files = sorted(SOURCES.glob("**/vulkan/spirv/*.spv"))
    assert len(files) > 40
    for path in files:
        code = instructions(path.read_bytes())
        asked = {words[1] for words in code if words[0] & 0xFFFF == CAPABILITY}
        assert asked <= EVERYWHERE | (PACKED_DOTS if path.stem.endswith(".dots") else set()), (path.name, asked)
        widths = {words[2] for words in code if words[0] & 0xFFFF == TYPE_INT}
        assert widths <= {16, 32}, (path.name, widths)
        assert {words[2] for words in code if words[0] & 0xFFFF == TYPE_FLOAT} <= {32}, path.name
