"""How close a package stays to its checkpoint: teacher-forced against transformers in float32.

The reference loads the same GGUF file with transformers (weights dequantised, everything in float32), writes a greedy
answer to every prompt, and gives the logits behind each of its tokens. The packages then see the same tokens, and the
share of positions with the same most likely token (top-1) and the mean Kullback-Leibler divergence are reported over
the answers' tokens.

Needs torch and transformers (torch 2.13.0, transformers 5.23.0 were used). Prompts: a JSON-lines file whose entries
hold ``turns``, such as Spec-Bench's question.jsonl (https://github.com/hemingkx/Spec-Bench)::

    python benchmarks/fidelity.py --gguf model.gguf --package native-package --package float-package \
        --prompts question.jsonl --tokens 3000
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

import edge_rt

MAX_PROMPT_TOKENS = 600
ANSWER_TOKENS = 128
PIECE = 128


def load_prompts(path: Path) -> list[str]:
    """Return the first turns, spread over the file's categories."""
    turns = [json.loads(line)["turns"][0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [turns[(i * 37) % len(turns)] for i in range(len(turns))]


class Reference:
    """The checkpoint in transformers, float32."""

    def __init__(self, gguf: Path, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
        ).eval()

    def answer(self, prompt_ids: list[int], end_ids: list[int]) -> list[int]:
        """Return a greedy answer."""
        with self.torch.inference_mode():
            ids = self.torch.tensor([prompt_ids])
            out = self.model.generate(
                ids,
                attention_mask=self.torch.ones_like(ids),
                do_sample=False,
                temperature=None,
                top_p=None,
                max_new_tokens=ANSWER_TOKENS,
                eos_token_id=end_ids,
                pad_token_id=end_ids[0],
            )
        return out[0, len(prompt_ids) :].tolist()

    def logits(self, token_ids: list[int], first: int) -> np.ndarray:
        """Return the logits behind positions ``first``... of a sequence, float32."""
        with self.torch.inference_mode():
            return self.model(self.torch.tensor([token_ids])).logits[0, first:].float().numpy()


def package_logits(model: edge_rt.Model, token_ids: list[int], first: int) -> np.ndarray:
    """Return the package's logits behind positions ``first``... of a sequence, float32."""
    pieces = []
    with model.passes() as (target, cache):
        cache.truncate(0)
        for start in range(0, len(token_ids), PIECE):
            piece = token_ids[start : start + PIECE]
            with cache.reserve(len(piece)) as rows:
                wanted = min(len(piece), max(1, start + len(piece) - first))
                pieces.append(target.forward(piece, rows.start, wanted).logits.copy())
                rows.commit(piece)
    return np.concatenate(pieces)[-(len(token_ids) - first) :]


def divergence(reference: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return KL(reference || found) per row, in nats."""
    p, q = log_softmax(reference), log_softmax(found)
    return (np.exp(p) * (p - q)).sum(axis=-1)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--package", type=Path, action="append", required=True, help="may be given several times")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=3000, help="tokens of answers to compare, at least")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()

    reference = Reference(arguments.gguf.resolve(), arguments.threads)
    models = {str(path): edge_rt.load(path, threads=arguments.threads) for path in arguments.package}
    first_model = next(iter(models.values()))
    agree: dict[str, list[np.ndarray]] = {name: [] for name in models}
    kl: dict[str, list[np.ndarray]] = {name: [] for name in models}
    compared = prompts = 0
    for text in load_prompts(arguments.prompts):
        prompt = first_model.tokenizer.encode_rendered(first_model.render([{"role": "user", "content": text}]))
        if len(prompt) > MAX_PROMPT_TOKENS:
            continue
        answer = reference.answer(prompt, list(first_model.tokenizer.eos_token_ids))
        sequence, first = [*prompt, *answer][:-1], len(prompt) - 1
        wanted = reference.logits(sequence, first)
        for name, model in models.items():
            found = package_logits(model, sequence, first)
            agree[name].append(wanted.argmax(-1) == found.argmax(-1))
            kl[name].append(divergence(wanted, found))
        compared, prompts = compared + len(answer), prompts + 1
        print(f"{prompts} prompts, {compared} tokens", file=sys.stderr)
        if compared >= arguments.tokens:
            break
    report = {
        "tokens": compared,
        "prompts": prompts,
        "packages": [
            {
                "package": name,
                "op_profile": model.package.manifest.op_profile,
                "activations": model.package.manifest.activations,
                "top1_agreement": float(np.concatenate(agree[name]).mean()),
                "mean_kl": float(np.concatenate(kl[name]).mean()),
            }
            for name, model in models.items()
        ],
    }
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{compared} tokens of {prompts} answers")
    for row in report["packages"]:
        kind = f"{row['op_profile']}, {row['activations']} activations"
        print(f"{kind}: top-1 {row['top1_agreement']:.2%}, KL {row['mean_kl']:.3e} nats")


if __name__ == "__main__":
    main()
