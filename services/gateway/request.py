"""A request for a completion, born valid as far as that can be seen without a model."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from services.common.errors import InvalidRequest
from services.common.ids import Cohort, ModelName, RequestId
from services.gateway.chat import Message
from services.gateway.sampling import SamplingAsked

MAX_REQUEST_ID_CHARS: Final = 128
MAX_PROMPT_TOKENS: Final = 1 << 18
MAX_MESSAGES: Final = 4_096
MAX_STOPS: Final = 16
MAX_STOP_CHARS: Final = 256
MAX_CACHE_SALT_BYTES: Final = 256
_ROLE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


@dataclasses.dataclass(frozen=True, slots=True)
class TextPrompt:
    text: str

    def __post_init__(self) -> None:
        if not self.text:
            raise _invalid("the prompt is empty; give at least one token's worth of text", "PROMPT_EMPTY")

    @property
    def size_bytes(self) -> int:
        return len(self.text.encode())


@dataclasses.dataclass(frozen=True, slots=True)
class TokenPrompt:
    token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise _invalid("the prompt is empty; give at least one token id", "PROMPT_EMPTY")
        if len(self.token_ids) > MAX_PROMPT_TOKENS:
            raise _invalid(f"the prompt has more than {MAX_PROMPT_TOKENS} token ids", "PROMPT_TOO_LARGE")

    @property
    def size_bytes(self) -> int:
        return 0  # no text


@dataclasses.dataclass(frozen=True, slots=True)
class ChatPrompt:
    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        if not self.messages:
            raise _invalid("there are no messages; give at least one", "PROMPT_EMPTY")
        if len(self.messages) > MAX_MESSAGES:
            raise _invalid(f"there are more than {MAX_MESSAGES} messages", "PROMPT_TOO_LARGE")
        for message in self.messages:
            if not _ROLE.fullmatch(message.role):
                raise _invalid(
                    f"{message.role[:40]!r} is no role: use for example system, user or assistant",
                    "ROLE_INVALID",
                )

    @property
    def size_bytes(self) -> int:
        return sum(len(message.role) + len(message.content.encode()) for message in self.messages)


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a caller asks for.

    Attributes:
        request_id: Unique among running requests.
        model: Empty when the caller leaves the choice to us.
        cohort: None when the caller leaves the choice to us.
        stops: Strings that end the answer and are not part of it.
        cache_salt: It shares what is computed of its prompt with its tenant's requests of the same salt.
        tenant: Whose it is: the name of the caller's credential; empty where callers are not asked.

    Raises:
        InvalidRequest: The id, a stop string or the salt is out of bounds.
    """

    request_id: RequestId
    model: ModelName
    cohort: Cohort | None
    prompt: Prompt
    sampling: SamplingAsked
    stops: tuple[str, ...] = ()
    cache_salt: bytes = b""
    tenant: str = ""

    def __post_init__(self) -> None:
        if not 0 < len(self.request_id) <= MAX_REQUEST_ID_CHARS:
            raise _invalid(
                f"request_id has {len(self.request_id)} characters; it may have 1 to {MAX_REQUEST_ID_CHARS}",
                "REQUEST_ID_INVALID",
            )
        if len(self.stops) > MAX_STOPS:
            raise _invalid(f"there are more than {MAX_STOPS} stop strings", "STOP_INVALID")
        for stop in self.stops:
            if not 0 < len(stop) <= MAX_STOP_CHARS:
                raise _invalid(
                    f"a stop string has {len(stop)} characters; it may have 1 to {MAX_STOP_CHARS}",
                    "STOP_INVALID",
                )
        if len(self.cache_salt) > MAX_CACHE_SALT_BYTES:
            raise _invalid(
                f"cache_salt has {len(self.cache_salt)} bytes; at most {MAX_CACHE_SALT_BYTES}",
                "CACHE_SALT_INVALID",
            )

    def check_size(self, max_prompt_bytes: int) -> None:
        """Raises InvalidRequest when the prompt's text is longer than that."""
        size_bytes = self.prompt.size_bytes
        if size_bytes > max_prompt_bytes:
            raise _invalid(
                f"the prompt has {size_bytes} bytes of text; at most {max_prompt_bytes}", "PROMPT_TOO_LARGE"
            )


def _invalid(message: str, reason: str) -> InvalidRequest:
    return InvalidRequest(message, reason=reason)
