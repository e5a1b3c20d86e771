"""Representative requests as token ids: what a model is warmed up with before anybody may ask it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from services.common.errors import CorruptData
from services.common.text.chat_template import compile_template, lay_out, template_source
from services.common.text.representative_requests import FILE, RepresentativeRequest, read_requests
from services.common.text.special_tokens import special_tokens
from services.common.text.template_meter import metered
from services.common.text.tokenizer_file import read_tokenizer

MOST_WARMED: Final = 16  # of an artifact's representative requests, from the first on
_MAX_CHARS: Final = 2 << 20
_SHOWN: Final = 300  # characters of another's message that are passed on


class RepresentativePrompt(NamedTuple):
    """A request that is ready to be computed.

    Attributes:
        number: Of the request in the file, from 1.
        token_ids: At least one, each within the vocabulary.
        expected_token_ids: How the greedy answer must begin; empty where nothing is expected.
    """

    number: int
    token_ids: tuple[int, ...]
    expected_token_ids: tuple[int, ...] = ()


def encode_requests(files: Mapping[str, bytes]) -> tuple[RepresentativePrompt, ...]:
    """The first `MOST_WARMED` requests of an artifact, as a gateway would encode them.

    Parsing a tokenizer keeps the interpreter's lock, 0.3 s for 128,000 tokens.

    Args:
        files: Name to content of its text files; none of them but config.json and tokenizer.json need be there.

    Returns:
        Those that leave room for a token of the model's context; none where the artifact has no such file.

    Raises:
        CorruptData: One cannot be encoded, or expects what is not in the vocabulary; names it.
    """
    if FILE not in files:
        return ()
    requests = read_requests(files[FILE])[:MOST_WARMED]
    encoder = _Encoder(files)
    prompts = [encoder.encode(request) for request in requests]
    return tuple(
        each
        for each in prompts
        if len(each.token_ids) + len(each.expected_token_ids) < encoder.context_tokens
    )


class _Encoder:
    def __init__(self, files: Mapping[str, bytes]) -> None:
        config, tokenizer_config = _object(files, "config.json"), _object(files, "tokenizer_config.json")
        self.context_tokens = int(config["max_position_embeddings"])
        self._vocab_size = int(config["vocab_size"])
        self._tokenizer = read_tokenizer(files["tokenizer.json"])
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._special = special_tokens(tokenizer_config, _object(files, "special_tokens_map.json"))
        file = files.get("chat_template.jinja")
        source = template_source(tokenizer_config, file.decode() if file else None)
        self._template = compile_template(source) if source is not None else None

    def encode(self, request: RepresentativeRequest) -> RepresentativePrompt:
        if request.prompt is not None:
            ids = self._ids(request.prompt, is_text=True)
        else:
            ids = self._ids(self._lay_out(request), is_text=False)
        if not ids:
            raise _unusable(request, "has no tokens")
        for token in (*ids, *request.expected_token_ids):
            if token >= self._vocab_size:
                raise _unusable(
                    request, f"has token id {token}; ids of the model are below {self._vocab_size}"
                )
        self._tokenizer.decode([*ids, *request.expected_token_ids])
        return RepresentativePrompt(request.number, ids, request.expected_token_ids)

    def _ids(self, text: str, *, is_text: bool) -> tuple[int, ...]:
        """A text gets the special tokens that the tokenizer puts around texts; a conversation has its template's own."""
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=is_text)
        return tuple(encoding.ids)

    def _lay_out(self, request: RepresentativeRequest) -> str:
        if self._template is None:
            raise _unusable(request, "has messages, and the model has no chat template")
        pieces, size = list[str](), 0
        try:
            with metered():
                for piece in lay_out(self._template, request.messages, **self._special):
                    size += len(piece)
                    if size > _MAX_CHARS:
                        break
                    pieces.append(piece)
        except Exception as fault:  # a template can raise anything
            what = f"has messages that the chat template does not take: {str(fault)[:_SHOWN]}"
            raise _unusable(request, what) from fault
        if size > _MAX_CHARS:
            raise _unusable(request, f"has messages that make more than {_MAX_CHARS} characters")
        return "".join(pieces)


def _object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files.get(name, b"{}"))
    return content


def _unusable(request: RepresentativeRequest, what: str) -> CorruptData:
    return CorruptData(f"{FILE}: request {request.number} {what}")
