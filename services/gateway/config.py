"""What a gateway can be told."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from services.common.config import HostPort
from services.common.rpc.address import Address
from services.common.trust_config import TrustConfig
from services.gateway.completion import Limits


class GatewayConfig(TrustConfig):
    """The gateway's settings."""

    role: ClassVar[str] = "gateway"

    listen: HostPort = Field(
        Address("127.0.0.1", 50051), description="host:port to bind; port 0 takes a free one"
    )
    default_max_tokens: int = Field(
        512, ge=1, description="longest answer, in tokens, when a request does not say"
    )
    max_concurrent_requests: int = Field(
        4096,
        ge=1,
        description="most requests under way at once, those that wait for their turn included; others are to come back",
    )
    max_prompt_bytes: int = Field(
        1 << 20, ge=1, le=8 << 20, description="longest prompt text that is taken, in bytes of UTF-8"
    )

    @property
    def limits(self) -> Limits:
        return Limits(default_max_tokens=self.default_max_tokens, max_prompt_bytes=self.max_prompt_bytes)
