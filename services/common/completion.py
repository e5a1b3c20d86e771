"""What an answer consists of, for the gateway that gives it and the client that takes it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Self

from services.common.ids import ArtifactId, Cohort, ModelName, ProcessId, RequestId, Revision


class FinishReason(enum.Enum):
    """Why an answer ended."""

    STOP = "stop"  # an end-of-sequence token, a stop token or a stop string
    LENGTH = "length"  # max_tokens or the end of the context
    ABORTED = "aborted"  # Abort was called


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What an answer took.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Tokens generated, the one that ended the answer included.
        cached_tokens: Tokens of the prompt that were not computed again.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen: every parameter in effect, none left to a default."""

    temperature: float  # 0 is greedy
    top_k: int  # 0 keeps all
    top_p: float
    seed: int  # unsigned, 64 bits
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    logprobs: bool  # whether each token's is told


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What answered: which weights, where, and how it sampled; engine and build are empty if none had begun."""

    model: ModelName
    cohort: Cohort
    artifact_id: ArtifactId
    revision: Revision
    engine_id: ProcessId
    runtime_build: str
    sampling: Sampling


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of an answer.

    Attributes:
        token_ids: Generated since the last chunk; the text of an ending token is not part of `text`.
        text: Since the last chunk, whole characters only.
        provenance: In the first and the last chunk, where known.
        finish_reason: In the last chunk only, as is `usage`.
        matched_stop: The stop string that ended the answer, if one did.
        logprobs: Of every one of `token_ids`, where they were asked for, else none: natural logarithms of what the model
            itself gave them, before temperature, top_k and top_p.
    """

    request_id: RequestId
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    text: str = ""
    provenance: Provenance | None = None
    finish_reason: FinishReason | None = None
    matched_stop: str | None = None
    usage: Usage | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole answer; its fields are those of chunks."""

    request_id: RequestId
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    finish_reason: FinishReason
    matched_stop: str | None
    usage: Usage
    provenance: Provenance | None

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Self:
        """The answer that `chunks`, all of them, make together."""
        last = chunks[-1]
        assert last.finish_reason is not None
        assert last.usage is not None
        return cls(
            request_id=last.request_id,
            text="".join(chunk.text for chunk in chunks),
            token_ids=tuple(token_id for chunk in chunks for token_id in chunk.token_ids),
            logprobs=tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
            finish_reason=last.finish_reason,
            matched_stop=last.matched_stop,
            usage=last.usage,
            provenance=last.provenance,
        )
