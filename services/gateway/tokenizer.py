"""Text to token ids, by the tokenizer.json of an artifact."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Final

from services.common.text.tokenizer_file import read_tokenizer
from services.gateway.decoder import Decoder
from services.gateway.detokenizer import Detokenizer

LONG_TEXT: Final = 4_096  # characters; encoding more takes over a millisecond and leaves the event loop


class TextTokenizer:
    """An artifact's tokenizer.

    Args:
        tokenizer_json: The file's bytes.

    Raises:
        CorruptData: They are not a tokenizer.
        Unsupported: Its decoder cannot be streamed exactly.
    """

    def __init__(self, tokenizer_json: bytes) -> None:
        self._tokenizer = read_tokenizer(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        decoder = self._tokenizer.decoder
        self._decoder = Decoder(json.loads(decoder.__getstate__()) if decoder else None)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of `text`; a long one is encoded in a worker thread.

        Args:
            text: Of a length that the caller has checked.
            add_special_tokens: Whether to add what the tokenizer's post-processor adds to a text.
        """
        if len(text) < LONG_TEXT:
            return self._encode(text, add_special_tokens)
        return await asyncio.to_thread(self._encode, text, add_special_tokens)

    def detokenizer(self, ending: Iterable[int] = ()) -> Detokenizer:
        """The detokenizer of a new answer; the ids in `ending` end it and have no text."""
        silent = self._special.union(ending)
        return Detokenizer(self._tokenizer.id_to_token, self._decoder.start(), silent)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of all the ids at once, special tokens left out."""
        detokenizer = self.detokenizer()
        return "".join([detokenizer.push(token_id) for token_id in token_ids]) + detokenizer.finish()

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # A batch of one: `encode` itself keeps the interpreter's lock, 0.6 s for a megabyte.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids
