"""Writes the folder that onnxruntime-genai opens (4 bits, CPU) from a GGUF file; for answer_speed.py.

onnxruntime-genai's builder reads folders of Hugging Face, so transformers first writes the dequantised floats to one.

    pip install torch transformers gguf onnx-ir onnxruntime-genai
    python benchmarks/workers/genai_model.py model.Q4_1.gguf FOLDER
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def write_floats(gguf: Path, folder: Path) -> None:
    """Write a GGUF file's model, dequantised, and its tokenizer as a folder of Hugging Face."""
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    if hasattr(model.config, "quantization_config"):  # of the file; transformers does not write a model that has one
        del model.config.quantization_config
    floats = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    floats.load_state_dict(model.state_dict())
    floats.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    # The builder's own settings are its fast ones for CPUs: blocks of 32 as in Q4_1, activations in 8 bits.
    with tempfile.TemporaryDirectory() as work:
        floats = Path(work) / "floats"
        write_floats(args.gguf, floats)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(floats), "-o", str(args.folder)]
        command += ["-p", "int4", "-e", "cpu", "-c", str(Path(work) / "cache")]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
