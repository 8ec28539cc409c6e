"""Chat templates of a folder of transformers, and its text files: read with limits.

Places of templates, of which the first one that has any is read (as transformers 5 does): the files
``chat_template.jinja`` and ``additional_chat_templates/tool_use.jinja``; ``tokenizer_config.json``; and
``chat_template.json``, which older multimodal models have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from edge_rt.byte_size import show_size
from edge_rt.errors import InvalidModelFile, InvalidTokenizer, StorageError
from edge_rt.export.sources.safetensors_header import read_json
from edge_rt.export.sources.source import DEFAULT_TEMPLATE_NAME, TOOL_TEMPLATE_NAME
from edge_rt.package.documents import is_text
from edge_rt.system.checkpoint_names import (
    OLD_TEMPLATE_FILE,
    TEMPLATE_FILE,
    TOKENIZER_CONFIG_FILE,
    TOOL_TEMPLATE_FILE,
)

MAX_JSON_BYTES: Final = 16 << 20
MAX_TEMPLATE_BYTES: Final = 1 << 20
_FILES: Final = {DEFAULT_TEMPLATE_NAME: TEMPLATE_FILE, TOOL_TEMPLATE_NAME: TOOL_TEMPLATE_FILE}


def chat_templates(folder: Path) -> dict[str, str]:
    """Return the templates of a folder by name: ``default``, ``tool_use``, and others that its settings have.

    Raises:
        InvalidModelFile: a file is malformed or too large.
        InvalidTokenizer: a template is not UTF-8.
        StorageError: one cannot be read.
    """
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
    """Return the text of a file.

    Args:
        path: the file.
        most: its largest size in bytes.

    Raises:
        InvalidModelFile: it is larger.
        InvalidTokenizer: it is not UTF-8.
        StorageError: it cannot be read.
    """
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
    """Return the JSON object in a file; an empty one if there is no such file.

    Raises:
        InvalidModelFile: it is not a JSON object.
        StorageError: it cannot be read.
    """
    return read_json(path, MAX_JSON_BYTES) if path.is_file() else {}
