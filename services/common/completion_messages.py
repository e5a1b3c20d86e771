"""Completions as messages of the wire, for a client."""

from __future__ import annotations

from typing import Final

from halogen.v1 import inference_pb2 as pb
from halogen.v1 import types_pb2
from services.common.completion import Chunk, FinishReason, Provenance, Sampling, Usage
from services.common.ids import ArtifactId, Cohort, ModelName, ProcessId, RequestId, Revision

_FINISH_REASONS: Final = {
    types_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    types_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    types_pb2.FINISH_REASON_ABORTED: FinishReason.ABORTED,
}


def chunk_of(message: pb.CompletionChunk) -> Chunk:
    return Chunk(
        request_id=RequestId(message.request_id),
        token_ids=tuple(message.token_ids),
        logprobs=tuple(message.logprobs),
        text=message.text,
        provenance=_provenance(message.provenance) if message.HasField("provenance") else None,
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
        matched_stop=message.matched_stop if message.HasField("matched_stop") else None,
        usage=_usage(message.usage) if message.HasField("usage") else None,
    )


def _usage(message: types_pb2.TokenUsage) -> Usage:
    return Usage(message.prompt_tokens, message.completion_tokens, message.cached_tokens)


def _provenance(message: types_pb2.Provenance) -> Provenance:
    params = message.sampling
    return Provenance(
        model=ModelName(message.model),
        cohort=Cohort(message.cohort),
        artifact_id=ArtifactId(message.artifact_id),
        revision=Revision(message.revision),
        engine_id=ProcessId(message.engine_id),
        runtime_build=message.runtime_build,
        sampling=Sampling(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            seed=params.seed,
            max_tokens=params.max_tokens,
            stop_token_ids=tuple(params.stop_token_ids),
            ignore_eos=params.ignore_eos,
            logprobs=params.logprobs,
        ),
    )
