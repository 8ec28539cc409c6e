"""A folder as transformers writes it: ``config.json``, safetensors, ``tokenizer.json`` and what belongs to them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, InvalidTokenizer, ModelNotFound, StorageError, UnsupportedModel
from edge_rt.export.sources.end_tokens import end_texts
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.pooling import read_folder_pooling
from edge_rt.export.sources.safetensors_folder import (
    SafetensorsFolder,
    StoredTensor,
    read_folder,
    read_json,
    refuse_link,
)
from edge_rt.export.sources.sampling_advice import read_advice_file
from edge_rt.export.sources.source import DEFAULT_TEMPLATE_NAME, TOOL_TEMPLATE_NAME, Source, TokenizerBuild
from edge_rt.package.documents import is_text
from edge_rt.system.byte_size import show_size
from edge_rt.system.checkpoint_names import (
    CARD_FILE,
    CONFIG_FILE,
    GENERATION_FILE,
    OLD_TEMPLATE_FILE,
    TEMPLATE_FILE,
    TEXT_FILES,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    TOOL_TEMPLATE_FILE,
)
from edge_rt.text.tokenizer import Tokenizer
from edge_rt.text.tokenizer_check import MAX_FILE_BYTES

MAX_JSON_BYTES: Final = 16 << 20
MAX_TEMPLATE_BYTES: Final = 1 << 20
_FILES: Final = {DEFAULT_TEMPLATE_NAME: TEMPLATE_FILE, TOOL_TEMPLATE_NAME: TOOL_TEMPLATE_FILE}


def chat_templates(folder: Path) -> dict[str, str]:
    """Return the templates of a folder by name: ``default``, ``tool_use``, and others that its settings have."""
    files = {name: folder / file for name, file in _FILES.items()}
    found = {name: read_text(path, MAX_TEMPLATE_BYTES) for name, path in files.items() if path.is_file()}
    if found:
        return found
    for file in (TOKENIZER_CONFIG_FILE, OLD_TEMPLATE_FILE):
        found = _named(optional_json(folder / file).get("chat_template"))
        for name, text in found.items():
            if not is_text(text):
                raise InvalidTokenizer(
                    f"The chat template {name!r:.40} in {file} has a lone surrogate, which is not a character.",
                    f"It has {len(text)} characters.",
                    "Correct the template, or fetch the model again.",
                )
        if found:
            return found
    return {}


def _named(value: object) -> dict[str, str]:
    """Return templates as settings have them: one text, or a list of objects with a name."""
    if isinstance(value, str):
        return {DEFAULT_TEMPLATE_NAME: value}
    entries = [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
    pairs = [(one.get("name"), one.get("template")) for one in entries]
    return {name: text for name, text in reversed(pairs) if isinstance(name, str) and isinstance(text, str)}


def read_text(path: Path, most: int) -> str:
    """Return the text of a file."""
    try:
        with path.open("rb") as stream:
            data = stream.read(most + 1)
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror}.", "Check its permissions.") from error
    if len(data) > most:
        raise InvalidModelFile(
            f"{path.name} is too large.", f"At most {show_size(most)} are read.", "Fetch the model again."
        )
    try:
        return data.decode("utf-8")
    except ValueError as error:
        raise InvalidTokenizer(f"{path.name} is not UTF-8.", f"{error}.", "Fetch the model again.") from error


def optional_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is no such file."""
    return read_json(path, MAX_JSON_BYTES) if path.is_file() else {}


MAX_CARD_BYTES: Final = 1 << 20

_FIELD: Final = re.compile(r"(license|license_name):(.*)")
_LICENSE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .+_-]{0,63}")


def read_license(folder: Path) -> str | None:
    """Return the licence that a folder's model card states; None if it cannot be understood: it is text for people."""
    card = folder / CARD_FILE
    try:
        if not card.is_file():
            return None
        with card.open("rb") as stream:
            lines = stream.read(MAX_CARD_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    if not lines or lines[0].rstrip() != "---":
        return None
    found: dict[str, str] = {}
    for line in lines[1:]:
        if line.rstrip() == "---":
            # "other" stands for a licence that has no identifier; its name is beside it.
            stated = found.get("license")
            return found.get("license_name", stated) if stated == "other" else stated
        if match := _FIELD.fullmatch(line.split(" #")[0]):
            value = match[2].strip().strip("'\"")
            if _LICENSE.fullmatch(value):
                found[match[1]] = value
    return None


GGML_TYPE_OF: Final = {"F32": (0, "F32"), "F16": (1, "F16"), "BF16": (30, "BF16")}
"""Type of safetensors -> id and name of the ggml type of the same numbers."""


@dataclass(frozen=True)
class HFFolder:
    """A folder whose headers were read and checked."""

    path: Path
    config: Mapping[str, Any]
    weights: SafetensorsFolder


def read_hf_folder(folder: Path) -> HFFolder:
    """Read ``config.json`` and the headers of all weights."""
    return HFFolder(folder, read_hf_config(folder), read_folder(folder))


def read_hf_config(folder: Path) -> Mapping[str, Any]:
    """Return the contents of ``config.json``."""
    if not (folder / CONFIG_FILE).is_file():
        raise ModelNotFound(
            f"{folder} is not a checkpoint.", f"It holds no {CONFIG_FILE}.", "Give a GGUF file or a model's folder."
        )
    return read_json(folder / CONFIG_FILE, MAX_JSON_BYTES)


def float_tensor(where: str, name: str, stored: StoredTensor) -> TensorInfo:
    """Return a tensor of floats under another name."""
    if stored.dtype not in GGML_TYPE_OF:
        raise UnsupportedModel(
            f"{where}: the tensor '{stored.name}' has a type that edge-rt does not read.",
            f"It is {stored.dtype}; BF16, F16 and F32 are read.",
            "Get the model in one of these.",
        )
    type_id, type_name = GGML_TYPE_OF[stored.dtype]
    shape = stored.shape[::-1]
    if len(shape) == 3 and shape[1] == 1:
        # A convolution of every feature on its own, whose inputs are one.
        shape = (shape[0], shape[2])
    return TensorInfo(name, shape, type_id, type_name, stored.offset, stored.nbytes, stored.file, stored.name)


def hf_source(
    folder: HFFolder,
    tensors: Mapping[str, TensorInfo],
    remarks: tuple[str, ...] = (),
    *,
    has_halves: bool = True,
    norm_offset: float = 0.0,
) -> Source:
    """Return the checkpoint of a folder."""
    if not (folder.path / TOKENIZER_FILE).is_file():
        raise UnsupportedModel(
            f"{folder.path.resolve().name} has no {TOKENIZER_FILE}.",
            "Other forms of tokenizers are not read.",
            "Save it with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder).",
        )
    texts = tuple(path for name in TEXT_FILES if (path := folder.path / name).is_file())
    for path in texts:
        refuse_link(path)
    paths = (*folder.weights.paths, *texts)
    return Source(
        kind="safetensors",
        path=folder.path,
        paths=paths,
        size=sum(path.stat().st_size for path in paths),
        tensors=tensors,
        has_halves=has_halves,
        norm_offset=norm_offset,
        license=read_license(folder.path),
        build_tokenizer=lambda rows: build_hf_tokenizer(folder, rows),
        read_advice=lambda: read_advice_file(folder.path / GENERATION_FILE),
        read_pooling=lambda: read_folder_pooling(folder.path),
        remarks=remarks,
    )


def build_hf_tokenizer(folder: HFFolder, rows: int) -> TokenizerBuild:
    """Take ``tokenizer.json`` as it is, and the special tokens and the template from the files beside it.

    An answer ends at the tokens of ``generation_config.json``, or else of ``config.json``, and at special tokens that
    are known to end one; only if there are none, at the end token of ``tokenizer_config.json``.
    """
    text = read_text(folder.path / TOKENIZER_FILE, MAX_FILE_BYTES)
    settings = optional_json(folder.path / TOKENIZER_CONFIG_FILE)
    plain = Tokenizer.from_text(text, embedding_rows=rows)
    warnings: list[str] = [*plain.warnings]

    def checked(value: object, name: str) -> int | None:
        found = _token_id(value)
        if found is not None and found >= plain.vocab_size:
            warnings.append(f"'{name}' is {found}, which is no token ({plain.vocab_size} exist): it is ignored.")
            return None
        return found

    bos = checked(folder.config.get("bos_token_id"), "bos_token_id")
    if bos is None:
        bos = _id_of_text(plain, settings.get("bos_token"))
    stated = optional_json(folder.path / GENERATION_FILE).get("eos_token_id")
    stated = folder.config.get("eos_token_id") if stated is None else stated
    ends = [checked(one, "eos_token_id") for one in (stated if isinstance(stated, list) else [stated])]
    texts = end_texts(plain.special_tokens)
    ends += [plain.token_to_id(text) for text in plain.special_tokens if text in texts]
    if all(end is None for end in ends):
        ends = [_id_of_text(plain, settings.get("eos_token"))]
    templates = chat_templates(folder.path)
    build = TokenizerBuild(
        json_text=text,
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        add_bos=bos is not None and _adds_bos(text, settings, bos),
        chat_template=templates.get(DEFAULT_TEMPLATE_NAME),
        tool_template=templates.get(TOOL_TEMPLATE_NAME),
        warnings=tuple(warnings),
    )
    # The ids are those of the vocabulary.
    Tokenizer.from_text(text, info=build, embedding_rows=rows)
    return build


def _token_id(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _id_of_text(tokenizer: Tokenizer, value: object) -> int | None:
    """Return the id of a special token, which is given as its text or as an object that has it."""
    if isinstance(value, dict):
        value = value.get("content")
    return tokenizer.token_to_id(value) if isinstance(value, str) else None


def _adds_bos(text: str, settings: Mapping[str, Any], bos: int) -> bool:
    """Return whether transformers writes the BOS token before a text: by the tokenizer's template, or by a setting."""
    step = json.loads(text).get("post_processor")
    steps = step.get("processors", [step]) if isinstance(step, dict) else []
    for one in steps if isinstance(steps, list) else []:
        pieces = _entry(one, "single")
        if not isinstance(pieces, list):
            continue
        first = _entry(pieces[0], "SpecialToken") if pieces else None
        ids = _entry(_entry(_entry(one, "special_tokens"), _entry(first, "id")), "ids")
        return isinstance(ids, list) and bos in ids
    return settings.get("add_bos_token") is True


def _entry(value: object, key: object) -> Any:
    """Return a value of a JSON object; None if there is no such key, or no object but anything else."""
    return value.get(key) if isinstance(value, dict) and isinstance(key, str) else None
