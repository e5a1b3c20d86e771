"""One answer on its way out: what is known of it, and the chunks that it becomes."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from services.common.completion import Chunk, Provenance, Sampling, Usage
from services.common.errors import InternalError
from services.common.ids import ProcessId, RequestId
from services.gateway.catalog import Routed
from services.gateway.outbox import Batch
from services.gateway.ports import EngineMessage, TokenRequest
from services.gateway.timeline import Timeline


class Leg(NamedTuple):
    """A request bound to one artifact: where it goes, and as what."""

    routed: Routed
    tokens: TokenRequest

    @property
    def sampling(self) -> Sampling:
        return self.tokens.sampling


class Answer:
    """Collects an answer's facts and makes its chunks; the first and the last tell where it comes from.

    Attributes:
        begun: Whether an engine has begun to answer.
        outcome: The finish reason, once there is one.
        times: When it reached its stages.
    """

    def __init__(self, request_id: RequestId, now_s: float) -> None:
        self.times = Timeline(now_s)
        self.request_id = request_id
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._cached_tokens = 0
        self._provenance: Provenance | None = None
        self._is_first = True
        self.begun = False
        self.outcome = "unfinished"

    @property
    def provenance(self) -> Provenance | None:
        """None until the request has a route."""
        return self._provenance

    @property
    def usage(self) -> Usage:
        """So far, as the reader has seen it."""
        return Usage(self._prompt_tokens, self._completion_tokens, self._cached_tokens)

    def bind(self, leg: Leg) -> None:
        """The request goes this way, or now this way."""
        route = leg.routed.route
        self._prompt_tokens = len(leg.tokens.prompt_token_ids)
        self._provenance = Provenance(
            model=route.model,
            cohort=route.cohort,
            artifact_id=route.artifact_id,
            revision=route.revision,
            engine_id=ProcessId(""),
            runtime_build="",
            sampling=leg.sampling,
        )

    def begin(self, message: EngineMessage) -> None:
        """The engine's first message is here.

        Raises:
            InternalError: It is of another artifact: no mixture of two is ever given out.
        """
        self.begun = True
        self._cached_tokens = message.cached_tokens
        assert self._provenance is not None
        if message.artifact_id != self._provenance.artifact_id:
            raise InternalError("the engine answered with another artifact than was asked for")
        self._provenance = dataclasses.replace(
            self._provenance, engine_id=message.engine_id, runtime_build=message.runtime_build
        )

    def chunk(self, batch: Batch) -> Chunk:
        """The chunk that tells of `batch`; each batch is told once."""
        self._completion_tokens += len(batch.token_ids)
        if batch.ending:
            self.outcome = batch.ending.reason.value
        tells, self._is_first = self._is_first or batch.ending is not None, False
        return Chunk(
            request_id=self.request_id,
            token_ids=batch.token_ids,
            logprobs=batch.logprobs,
            text=batch.text,
            provenance=self._provenance if tells else None,
            finish_reason=batch.ending.reason if batch.ending else None,
            matched_stop=batch.ending.matched_stop if batch.ending else None,
            usage=self.usage if batch.ending else None,
        )
