"""Verify that speculative decoding gives the same tokens as plain decoding, by answering every prompt both ways."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence as Items
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_rt.measure.kept_lines import KeptLines
from edge_rt.measure.prompts import PLAIN, LeftOut, Prompt, answer_each, first_difference, steps_of
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.forward.cancel import CancelToken

if TYPE_CHECKING:
    from edge_rt.runtime.model import Model


@dataclass(frozen=True)
class Difference:
    """The first token in which a speculative answer differs from the plain one.

    Attributes:
        plain: token id of the plain answer there; None if it had ended.
        speculative: token id of the speculative answer there; None if it had ended.
    """

    kv: str
    drafter: str
    prompt: int
    position: int
    plain: int | None
    speculative: int | None


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt with one cache format and one mode.

    Attributes:
        overflow: tokens of the prompt, requested tokens and capacity of the context, if the prompt was left out because
            it does not fit; otherwise None.
    """

    kv: str
    mode: str
    prompt: int
    token_ids: tuple[int, ...]
    steps: int
    drafted: int = 0
    overflow: tuple[int, int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Any) -> Answer:
        """Return the answer that ``to_json`` wrote."""
        overflow = document["overflow"]
        if overflow is not None:
            prompt_tokens, requested, context = map(_count, overflow)
            overflow = (prompt_tokens, requested, context)
        return cls(
            str(document["kv"]),
            str(document["mode"]),
            _count(document["prompt"]),
            tuple(map(_count, document["token_ids"])),
            _count(document["steps"]),
            _count(document["drafted"]),
            overflow,
        )


def answers(
    model: Model,
    prompts: Items[Prompt],
    config: GenerationConfig,
    mode: str,
    *,
    kv: str,
    raw: bool = False,
    cancel: CancelToken | None = None,
) -> Generator[Answer]:
    """Answer every prompt with one mode, as ``answer_each``; ``kv`` is the format of the model's KV cache."""
    for prompt, item in answer_each(model, prompts, config, (mode,), raw=raw, cancel=cancel):
        if isinstance(item, LeftOut):
            numbers = (item.prompt_tokens, item.requested_tokens, item.context_tokens)
            yield Answer(kv, mode, prompt.index, (), 0, overflow=numbers)
        else:
            [result] = item
            drafted = 0 if result.spec is None else result.spec.rows_drafted
            yield Answer(kv, mode, prompt.index, result.token_ids, steps_of(result), drafted)


def compare(plain: Answer, speculative: Answer) -> Difference | None:
    """Return the first difference of two answers to a prompt, or None if they are equal."""
    parted = first_difference(plain.token_ids, speculative.token_ids)
    return None if parted is None else Difference(speculative.kv, speculative.mode, speculative.prompt, *parted)


def summary(found: Items[Answer], modes: Items[str]) -> dict[str, Any]:
    """Return the results as a JSON object.

    ``prompts`` counts the compared prompts, once per cache format. ``identical`` counts those whose answers were the
    same with every drafter. ``tokens_per_step`` counts tokens and passes after every answer's first token, and is None
    if there were none. Where ``drafted`` is 0, identical answers prove nothing: they are plain ones.
    """
    plain = {(answer.kv, answer.prompt): answer for answer in found if answer.mode == PLAIN}
    compared = {place for place, answer in plain.items() if answer.overflow is None}
    by_drafter: dict[str, Any] = {}
    differences: list[Difference] = []
    for mode in modes:
        own = [answer for answer in found if answer.mode == mode and (answer.kv, answer.prompt) in compared]
        parted = [item for answer in own if (item := compare(plain[answer.kv, answer.prompt], answer)) is not None]
        differences += parted
        decoded_tokens = sum(max(len(answer.token_ids) - 1, 0) for answer in own)
        steps = sum(answer.steps for answer in own)
        by_drafter[mode] = {
            "prompts": len(own),
            "identical": len(own) - len(parted),
            "first_difference": asdict(parted[0]) if parted else None,
            "tokens": sum(len(answer.token_ids) for answer in own),
            "tokens_per_step": decoded_tokens / steps if steps else None,
            "drafted": sum(answer.drafted for answer in own),
        }
    return {
        "prompts": len(compared),
        "identical": len(compared) - len({(item.kv, item.prompt) for item in differences}),
        "first_difference": asdict(differences[0]) if differences else None,
        "drafted": sum(item["drafted"] for item in by_drafter.values()),
        "by_drafter": by_drafter,
        "left_out": [
            dict(zip(("kv", "prompt", "prompt_tokens", "requested_tokens", "context_tokens"), row, strict=True))
            for row in ((a.kv, a.prompt, *a.overflow) for a in plain.values() if a.overflow is not None)
        ],
    }


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("not a count")
    return value


class VerifyState(KeptLines[Answer]):
    """The answers of a verification in a file."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        super().__init__(
            path,
            header,
            form=("edge-rt verify", 1),
            work="verification",
            part="an answer",
            read=Answer.from_json,
        )

    @property
    def answers(self) -> list[Answer]:
        """The answers in the file when it was opened."""
        return self.parts

    def append(self, answer: Answer) -> None:
        """Write an answer."""
        self.add(answer.to_json())
