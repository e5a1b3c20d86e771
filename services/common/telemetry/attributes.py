"""Names of span attributes: OpenTelemetry's for generative AI, calls and errors, and `halogen.*` for our own words."""

from __future__ import annotations

from typing import Final

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"

SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
RPC_SYSTEM: Final = "rpc.system"
RPC_SERVICE: Final = "rpc.service"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS: Final = "rpc.grpc.status_code"

REQUEST_ID: Final = "halogen.request_id"
TICKET_ID: Final = "halogen.ticket_id"
MODEL: Final = "halogen.model"
COHORT: Final = "halogen.cohort"
ARTIFACT_ID: Final = "halogen.artifact_id"
REVISION: Final = "halogen.revision"
ENGINE_ID: Final = "halogen.engine_id"
SIZE_BYTES: Final = "halogen.size_bytes"

PROVIDER_NAME: Final = "halogen"
CHAT: Final = "chat"
TEXT_COMPLETION: Final = "text_completion"
