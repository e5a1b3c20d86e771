"""The text side of an artifact: all that the gateway needs of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import weakref
from collections.abc import Mapping
from typing import Any, Final

import structlog

from services.common.errors import CorruptData, HalogenError, InvalidRequest
from services.common.ids import ArtifactId
from services.common.text.chat_template import template_source
from services.common.text.generation_defaults import GenerationDefaults
from services.common.text.special_tokens import special_tokens
from services.gateway.chat import ChatTemplate
from services.gateway.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from services.gateway.tokenizer import TextTokenizer

REQUIRED_FILES: Final = ("config.json", "tokenizer.json")
OPTIONAL_FILES: Final = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "representative_requests.jsonl",
)

log = structlog.get_logger()


class TextModel:
    """Turns prompts into the token ids of one artifact's vocabulary, and says how it wants to be sampled.

    Attributes:
        context_tokens: Most tokens of prompt and answer together.
        vocab_size: Every token id is below it.
    """

    def __init__(
        self,
        artifact_id: ArtifactId,
        *,
        tokenizer: TextTokenizer,
        template: ChatTemplate | None,
        defaults: GenerationDefaults,
        context_tokens: int,
        vocab_size: int,
    ) -> None:
        self.artifact_id = artifact_id
        self.tokenizer = tokenizer
        self.defaults = defaults
        self.context_tokens = context_tokens
        self.vocab_size = vocab_size
        self._template = template

    async def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids, at least one, each within the vocabulary.

        A text gets the special tokens that the tokenizer puts around texts; a conversation has its template's
        own.

        Raises:
            InvalidRequest: There are none, one is out of range, or the template does not take the messages.
        """
        match prompt:
            case TokenPrompt():
                token_ids = list(prompt.token_ids)
            case TextPrompt():
                token_ids = await self.tokenizer.encode(prompt.text, add_special_tokens=True)
            case ChatPrompt():
                token_ids = await self._encode_chat(prompt)
        if not token_ids:
            raise InvalidRequest("the prompt has no tokens; give some text", reason="PROMPT_EMPTY")
        if max(token_ids) >= self.vocab_size:
            raise InvalidRequest(
                f"the prompt has token id {max(token_ids)}; ids of this model are below {self.vocab_size}",
                reason="TOKEN_ID_INVALID",
            )
        return token_ids

    async def _encode_chat(self, prompt: ChatPrompt) -> list[int]:
        if self._template is None:
            raise InvalidRequest(
                "the model has no chat template; use Generate (the command: halogen generate)",
                reason="CHAT_TEMPLATE_MISSING",
            )
        text = await asyncio.to_thread(self._template.render, prompt.messages)
        return await self.tokenizer.encode(text, add_special_tokens=False)


class TextModelReader:
    """Makes text models from an artifact's files; artifacts with the same tokenizer share it.

    Args:
        max_prompt_bytes: Bounds what a chat template may lay out: twice as many characters.
    """

    def __init__(self, max_prompt_bytes: int) -> None:
        self._max_chars = 2 * max_prompt_bytes
        self._tokenizers: weakref.WeakValueDictionary[bytes, TextTokenizer] = weakref.WeakValueDictionary()

    def read(self, artifact_id: ArtifactId, files: Mapping[str, bytes]) -> TextModel:
        """Reads the files named above; the optional ones may be missing.

        Raises:
            CorruptData: A file is not what its name says.
            Unsupported: The tokenizer's decoder cannot be streamed exactly.
        """
        try:
            return self._read(artifact_id, files)
        except HalogenError:
            raise
        except Exception as fault:  # whoever wrote them may have written anything
            raise CorruptData(f"the artifact's text files cannot be read: {fault!r}") from fault

    def _read(self, artifact_id: ArtifactId, files: Mapping[str, bytes]) -> TextModel:
        config = json.loads(files["config.json"])
        tokenizer_config = _optional(files, "tokenizer_config.json")
        defaults = GenerationDefaults.read(_optional(files, "generation_config.json"), config)
        if defaults.not_applied:
            log.warning("generation_config_not_applied", artifact_id=artifact_id, names=defaults.not_applied)
        tokens = special_tokens(tokenizer_config, _optional(files, "special_tokens_map.json"))
        template_file = files.get("chat_template.jinja")
        source = template_source(tokenizer_config, template_file.decode() if template_file else None)
        return TextModel(
            artifact_id,
            tokenizer=self._tokenizer(files["tokenizer.json"]),
            template=ChatTemplate(source, tokens, self._max_chars) if source is not None else None,
            defaults=defaults,
            context_tokens=int(config["max_position_embeddings"]),
            vocab_size=int(config["vocab_size"]),
        )

    def _tokenizer(self, tokenizer_json: bytes) -> TextTokenizer:
        """Parsing keeps the interpreter's lock, 0.3 s for 128,000 tokens, so it is done once for the same bytes."""
        digest = hashlib.sha256(tokenizer_json).digest()
        tokenizer = self._tokenizers.get(digest)
        if tokenizer is None:
            tokenizer = self._tokenizers[digest] = TextTokenizer(tokenizer_json)
        return tokenizer


def _optional(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files[name]) if name in files else {}
    return content
