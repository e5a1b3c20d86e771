"""The text files of a checkpoint: what no gateway could read is refused before it becomes an artifact."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from services.common.checkpoint.manifest import PATHS, Role
from services.common.errors import CorruptData
from services.common.text.chat_template import compile_template, template_source
from services.common.text.generation_defaults import GenerationDefaults
from services.common.text.representative_prompts import encode_requests
from services.common.text.representative_requests import read_requests
from services.common.text.tokenizer_file import read_tokenizer

_REMEDY: Final = "write it again (tokenizers and templates: with save_pretrained of the model's tokenizer)"


def check_text_files(files: Mapping[str, bytes]) -> None:
    """Reads the tokenizer and the chat template as a gateway does, and looks at the representative requests.

    Args:
        files: Name to content; all but tokenizer.json may be missing, and JSON files hold objects.

    Raises:
        CorruptData: One cannot be read.
    """
    try:
        read_tokenizer(files[PATHS[Role.TOKENIZER]])
        source = _template_source(files)
        if source is not None:
            compile_template(source)
        if (requests := files.get(PATHS[Role.REPRESENTATIVE_REQUESTS])) is not None:
            read_requests(requests)
    except CorruptData as fault:
        raise _unreadable(fault) from None


def check_representative_requests(files: Mapping[str, bytes]) -> None:
    """Encodes the representative requests, if there are any, as an engine does to warm up.

    Args:
        files: As above, all others being sound, config.json among them.

    Raises:
        CorruptData: One cannot be encoded, or expects what is no token.
    """
    try:
        encode_requests(files)
    except CorruptData as fault:
        raise _unreadable(fault) from None


def check_generation_config(files: Mapping[str, bytes], config: Mapping[str, Any]) -> None:
    """Reads how to generate as a gateway does.

    Args:
        files: Name to content; generation_config.json may be missing, and holds an object.
        config: Of the model.

    Raises:
        CorruptData: It cannot be used; names file, field, value and what to write.
    """
    GenerationDefaults.read(json.loads(files.get(PATHS[Role.GENERATION_CONFIG], b"{}")), config)


def _unreadable(fault: CorruptData) -> CorruptData:
    line = " ".join(fault.message.split())
    return CorruptData(f"{line}; {_REMEDY}", reason="TEXT_FILE_UNREADABLE")


def _template_source(files: Mapping[str, bytes]) -> str | None:
    config = json.loads(files.get(PATHS[Role.TOKENIZER_CONFIG], b"{}"))
    file = files.get(PATHS[Role.CHAT_TEMPLATE])
    try:
        return template_source(config, file.decode() if file else None)
    except (LookupError, TypeError, ValueError) as fault:
        raise CorruptData(f"the chat template cannot be read: {fault!r}") from None
