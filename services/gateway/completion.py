"""The way of one request: tokens, ticket, engine, text."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Final, NamedTuple

import structlog

from services.common.background import background
from services.common.completion import Chunk, FinishReason
from services.common.deadline import Deadline
from services.common.errors import (
    HalogenError,
    InternalError,
    InvalidRequest,
    Overloaded,
    PreconditionFailed,
    Unavailable,
)
from services.common.ids import TicketId, fresh_id
from services.common.no_engine import NoEngine
from services.common.rpc.in_flight import why_ended
from services.common.telemetry.attributes import ENGINE_ID, TICKET_ID
from services.common.telemetry.tracing import span
from services.gateway import finish_reason
from services.gateway.answer import Answer, Leg
from services.gateway.answer_text import AnswerText
from services.gateway.catalog import Catalog
from services.gateway.contexts import Contexts
from services.gateway.metrics import GatewayMetrics
from services.gateway.outbox import Ending, Outbox
from services.gateway.ports import EngineMessage, Engines, Scheduler, TokenRequest
from services.gateway.request import Request
from services.gateway.request_span import described
from services.gateway.rerouting import find, look_again
from services.gateway.running import Running
from services.gateway.sampling import Space, resolve
from services.gateway.stop import StopMatcher
from services.gateway.ticket_returns import TicketReturns
from services.gateway.timeline import Timeline

_RETIRED: Final = frozenset({"REVISION_RETIRED"})
_TICKET_REFUSED: Final = frozenset(
    {"TICKET_FOR_OTHER_INSTANCE", "TICKET_TERM_OVER", "TICKET_EXPIRED", "TICKET_USED", "TICKET_RELEASED"}
)

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the configuration.

    Attributes:
        default_max_tokens: Of an answer whose request does not say.
        max_prompt_bytes: Of a prompt's text.
    """

    default_max_tokens: int
    max_prompt_bytes: int


class Completions:
    """Answers requests.

    Args:
        catalog: Says where requests go.
        contexts: Says how long they may become there.
        scheduler: Grants tickets.
        engines: Redeem them.
        running: Knows the requests under way.
        returns: Takes tickets that were not redeemed.
        limits: Bounds of the configuration.
        metrics: Told of every request.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        contexts: Contexts,
        scheduler: Scheduler,
        engines: Engines,
        running: Running,
        returns: TicketReturns,
        limits: Limits,
        metrics: GatewayMetrics,
    ) -> None:
        self._catalog = catalog
        self._contexts = contexts
        self._scheduler = scheduler
        self._engines = engines
        self._running = running
        self._returns = returns
        self._limits = limits
        self._metrics = metrics

    async def stream(self, request: Request, deadline: Deadline) -> AsyncGenerator[Chunk, None]:
        """Yields the answer; the last chunk, and only that, has a finish_reason.

        When the last chunk comes, everything the request held has been given back and its id is free. Closing
        the generator, or cancelling its task, ends the request the same way.

        Raises:
            HalogenError: Instead of a last chunk.
        """
        answer, outbox = Answer(request.request_id, time.monotonic()), Outbox()
        with (
            described(request, answer),
            self._admitted(request, outbox),
            self._accounted(answer, deadline),
        ):
            async with background(self._produce(request, deadline, answer, outbox)):
                while (batch := await outbox.take()).ending is None:
                    yield answer.chunk(batch)
            last = answer.chunk(batch)
        yield last

    @contextlib.contextmanager
    def _admitted(self, request: Request, outbox: Outbox) -> Iterator[None]:
        """Takes the request in; from here on it counts as accepted."""
        with contextlib.ExitStack() as held:
            with self._metrics.refusing():
                request.check_size(self._limits.max_prompt_bytes)
                held.enter_context(self._running.admit(request.request_id, outbox.abort, request.tenant))
            yield

    @contextlib.contextmanager
    def _accounted(self, answer: Answer, deadline: Deadline) -> Iterator[None]:
        """One event and one terminal count for every request that was accepted, however it ends."""
        failure: BaseException | None = None
        self._metrics.accept()
        try:
            yield
        except BaseException as raised:
            failure = why_ended() or raised
            raise
        finally:
            ended_s, how = time.monotonic(), finish_reason.of(answer, failure, in_time=deadline.allows(0))
            self._metrics.end(answer, how, failure, ended_s)
            log.info(
                "completion_ended",
                request_id=answer.request_id,
                outcome=how,
                reason=failure.reason if isinstance(failure, HalogenError) else "",
                duration_s=round(answer.times.elapsed_s(ended_s), 6),
                **dataclasses.asdict(answer.usage),
            )

    async def _produce(self, request: Request, deadline: Deadline, answer: Answer, outbox: Outbox) -> None:
        """Fills the outbox and ends it, whatever happens: a failure is the reader's to raise."""
        structlog.contextvars.bind_contextvars(request_id=request.request_id)
        try:
            await self._answer(request, deadline, answer, outbox)
        except Exception as failure:  # noqa: BLE001  # handed over, not swallowed
            outbox.fail(failure)

    async def _answer(self, request: Request, deadline: Deadline, answer: Answer, outbox: Outbox) -> None:
        """Tries, once more where that may pass by the same route, and anew wherever the route has moved on."""
        leg, may_repeat = await self._bind(request, None, deadline), True
        while True:
            answer.bind(leg)
            refusal = await self._attempt(request, leg, deadline, answer, outbox)
            if refusal is None:
                return
            log.info("attempt_refused", reason=refusal.error.reason, error=str(refusal.error))
            await look_again(self._catalog, leg.routed.route, refusal.error, deadline)
            earlier, leg = leg, await self._bind(request, leg, deadline)
            if leg.routed.route == earlier.routed.route:
                if not (refusal.may_pass and may_repeat):
                    raise _for_caller(refusal.error)
                may_repeat = False

    async def _bind(self, request: Request, earlier: Leg | None, deadline: Deadline) -> Leg:
        """Routes the request; tokenizes it unless that was done for the same artifact."""
        routed = await find(self._catalog, request.model, request.cohort, deadline)
        if earlier and earlier.routed.route.artifact_id == routed.route.artifact_id:
            return Leg(routed, dataclasses.replace(earlier.tokens, route=routed.route))
        text = routed.text
        with span("tokenize"):
            prompt_token_ids = await text.encode(request.prompt)
        context_tokens = self._contexts.tokens(routed.route.artifact_id, text.context_tokens)
        space = Space(len(prompt_token_ids), context_tokens, text.vocab_size)
        tokens = TokenRequest(
            request_id=request.request_id,
            route=routed.route,
            prompt_token_ids=prompt_token_ids,
            sampling=resolve(request.sampling, text.defaults, space, self._limits.default_max_tokens),
            cache_salt=request.cache_salt,
            tenant=request.tenant,
        )
        return Leg(routed, tokens)

    async def _attempt(
        self, request: Request, leg: Leg, deadline: Deadline, answer: Answer, outbox: Outbox
    ) -> _Refusal | None:
        """One ticket. Returns the refusal if another way may fare better; nothing has come out then."""
        text = AnswerText(
            leg.routed.text.tokenizer.detokenizer(ending=leg.sampling.stop_token_ids),
            StopMatcher(request.stops),
        )
        ticket_id = TicketId(fresh_id("ticket"))
        granted = refused = False
        try:
            with span("queue", {TICKET_ID: ticket_id}), _waiting(answer.times):
                grant = await self._scheduler.grant(leg.tokens, ticket_id, deadline.remaining_s())
            granted = True
            with span("generate", {TICKET_ID: ticket_id, ENGINE_ID: grant.engine_id}):
                async with self._engines.generate(leg.tokens, grant, deadline.remaining_s()) as messages:
                    await self._relay(messages, answer, text, outbox)
        except HalogenError as failure:
            if answer.begun:
                raise _in_the_middle(failure) from failure
            refused = not granted and isinstance(failure, InvalidRequest | Overloaded)
            if not _may_fare_better(failure):
                raise
            return _Refusal(failure, granted or NoEngine.told_by(failure).is_draining)
        finally:
            # A grant whose answer was lost, because the caller left or its time was over, is given back too.
            if not answer.begun and not refused:
                self._returns.give_back(ticket_id)
        return None

    async def _relay(
        self, messages: AsyncIterator[EngineMessage], answer: Answer, text: AnswerText, outbox: Outbox
    ) -> None:
        """Turns the engine's messages into text, up to the end of the answer."""
        async for message in messages:
            if not answer.begun:
                answer.begin(message)
            self._time(message, answer)
            piece = text.push(message.token_ids)
            outbox.add(piece.token_ids, piece.text, message.logprobs[: len(piece.token_ids)])
            if message.finish_reason is not None and piece.matched_stop is None:
                piece = text.finish()
                outbox.add(piece.token_ids, piece.text)
            if piece.matched_stop is not None:
                return outbox.end(Ending(FinishReason.STOP, piece.matched_stop))
            if message.finish_reason is not None:
                return outbox.end(Ending(message.finish_reason))
            await outbox.room()
        raise InternalError(
            "the engine ended the answer without saying how; see its log", reason="ENGINE_FAILED"
        )

    def _time(self, message: EngineMessage, answer: Answer) -> None:
        if not message.token_ids:
            return
        gap_s = answer.times.receive(time.monotonic())
        if gap_s is not None:
            self._metrics.token_gap(answer, gap_s / len(message.token_ids))


class _Refusal(NamedTuple):
    """Why one attempt came to nothing, and whether that may pass by the same route: a ticket was to blame, or news on their way."""

    error: HalogenError
    may_pass: bool


def _may_fare_better(failure: HalogenError) -> bool:
    """Whether another ticket, or another route, may do what this one did not."""
    if isinstance(failure, PreconditionFailed):
        return failure.reason in _RETIRED | _TICKET_REFUSED
    return isinstance(failure, Overloaded | Unavailable)


def _for_caller(failure: HalogenError) -> HalogenError:
    """Tickets are our own affair: that an engine would not take one tells a caller only to come back."""
    if failure.reason in _TICKET_REFUSED:
        return Unavailable(
            "the engine would not take the request now; try again", reason="TICKET_REFUSED", retry_after_s=1.0
        )
    return failure


def _in_the_middle(failure: HalogenError) -> HalogenError:
    """An engine that is gone cannot be said to be merely unavailable: half an answer is out."""
    if isinstance(failure, Unavailable):
        return InternalError(
            f"the engine failed in the middle of the answer ({failure.message}); ask again",
            reason="ENGINE_FAILED",
        )
    return failure


@contextlib.contextmanager
def _waiting(times: Timeline) -> Iterator[None]:
    from_s = time.monotonic()
    try:
        yield
    finally:
        times.wait(from_s, time.monotonic())
