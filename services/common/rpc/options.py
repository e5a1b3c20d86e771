"""Channel arguments, the same on every server and client of the system.

A client's keepalive pings must never count as abuse: a server that answers them with GOAWAY
(``too_many_pings``) kills long silent calls. The server's key is
``grpc.http2.min_ping_interval_without_data_ms``; a misspelt key is silently ignored by gRPC.
"""

from __future__ import annotations

from typing import Final

Options = list[tuple[str, int]]

MESSAGE_LIMIT_BYTES: Final = 16 << 20
KEEPALIVE_TIME_MS: Final = 10_000
KEEPALIVE_TIMEOUT_MS: Final = 5_000

_MESSAGE_LIMITS: Final[Options] = [
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
]
# A probe of the bandwidth would grow the window of a reader that does not read to thousands of messages.
_FLOW_CONTROL: Final[Options] = [("grpc.http2.bdp_probe", 0)]
_KEEPALIVE: Final[Options] = [
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    (
        "grpc.http2.ping_timeout_ms",
        KEEPALIVE_TIMEOUT_MS,
    ),  # a frozen peer is given up by this one, not the other
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

SERVER_OPTIONS: Final[Options] = [
    *_MESSAGE_LIMITS,
    *_KEEPALIVE,
    *_FLOW_CONTROL,
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server.max_pending_requests", 1 << 16),  # bursts are refused by us, with words, not cut by gRPC
    ("grpc.server.max_pending_requests_hard_limit", 1 << 17),
    ("grpc.so_reuseport", 0),  # two servers on one port is a fault to be seen, not a feature
]
CLIENT_OPTIONS: Final[Options] = [
    *_MESSAGE_LIMITS,
    *_KEEPALIVE,
    *_FLOW_CONTROL,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # how long one attempt may take: a busy peer needs a moment
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),  # a name's new address is found as soon as the peer
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # only the caller knows whether a token has been delivered
]
