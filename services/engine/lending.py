"""What requests are lent to begin with: what their tickets promise, beside what is there of their prompts."""

from __future__ import annotations

import functools
from collections.abc import Callable

from services.common.errors import Cancelled
from services.common.ids import ArtifactId
from services.common.kv import BLOCK_TOKENS, expected_blocks
from services.engine.answer_length import AnswerLengths
from services.engine.job import Job
from services.engine.kv_desk import KvDesk
from services.engine.lender import LoadedModel
from services.engine.loan import Find, Loan, Terms
from services.engine.prefix_cache import PrefixCache
from services.engine.prefix_key import Sharers
from services.engine.sequence import TokenRequest
from services.engine.stepper import FinishReason, Outcome


class Lending:
    """Makes terms of requests, and learns from their ends what to expect of the next ones.

    Args:
        desk: Lends.
        prefixes: The pages that are kept; None where none are.
        expect: Told of an artifact whose answers are expected to have another length, in tokens.
    """

    def __init__(
        self, desk: KvDesk, prefixes: PrefixCache | None, expect: Callable[[ArtifactId, int], object]
    ) -> None:
        self._desk = desk
        self._prefixes = prefixes
        self._expect = expect
        self._answers = AnswerLengths()

    def admit(self, job: Job, model: LoadedModel, promised_bytes: int | None) -> Loan:
        """Lends a new request what it is promised, or lets it wait.

        Args:
            job: It; without a ticket, when it is background work, it has its worst case or nothing.
            model: Computes it.
            promised_bytes: By its ticket; as much as is expected of the model's answers when not given.

        Raises:
            InvalidRequest: Its worst case exceeds the whole arena.
            Overloaded: There is no room, and nothing was promised, or more than there is.
        """
        request = job.sequence.request
        if job.is_background:
            terms = Terms(model.block_bytes, request.worst_case_blocks, 0, self._finder(model, request))
            return self._desk.admit(job, terms)
        expected = self._answers.expected(artifact_of(model))
        promised_blocks = (
            _blocks(request, expected) if promised_bytes is None else promised_bytes // model.block_bytes
        )
        start = max(_blocks(request, 1), min(request.worst_case_blocks, promised_blocks))
        return self._desk.admit(
            job, Terms(model.block_bytes, start, start * model.block_bytes, self._finder(model, request))
        )

    def learn(self, job: Job, model: LoadedModel, outcome: Outcome) -> None:
        """An answer has ended: one that reaches its max_tokens, or fails, is cut off."""
        if job.is_background:
            return
        artifact_id = artifact_of(model)
        is_whole = outcome is FinishReason.STOP or isinstance(outcome, Cancelled)
        if self._answers.hear(artifact_id, job.sequence.generated, is_whole=is_whole):
            self._expect(artifact_id, self._answers.expected(artifact_id))

    def forget(self, model: LoadedModel) -> None:
        """It answers nobody any more."""
        self._answers.forget(artifact_of(model))
        self._expect(artifact_of(model), 0)

    def _finder(self, model: LoadedModel, request: TokenRequest) -> Find:
        """Looks for what is there of its tokens; for nothing where it is to share nothing."""
        if self._prefixes is None or request.cache_salt is None:
            return lambda _: None
        sharers = Sharers(request.tenant, request.cache_salt)
        return functools.partial(self._prefixes.find, model.origin, sharers)


def artifact_of(model: LoadedModel) -> ArtifactId:
    return ArtifactId(model.origin.artifact_id)


def _blocks(request: TokenRequest, expected_tokens: int) -> int:
    return expected_blocks(len(request.prompt), request.sampling.max_tokens, BLOCK_TOKENS, expected_tokens)
