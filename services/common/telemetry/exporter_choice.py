"""Whether spans are exported, and how: what the standard OTEL_* variables ask for."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import structlog

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

log = structlog.get_logger()


class ExporterKind(enum.Enum):
    NONE = "none"
    OTLP = "otlp"  # over gRPC
    CONSOLE = "console"


def choose_exporter(environ: Mapping[str, str]) -> ExporterKind:
    """OTEL_TRACES_EXPORTER says it; where it does not, an OTLP endpoint asks for OTLP.

    A wish that cannot be met is logged, and nothing is exported: tracing never keeps a process from starting.
    """
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ExporterKind.NONE
    asked = environ.get("OTEL_TRACES_EXPORTER") or _default(environ)
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), "grpc")
    try:
        kind = ExporterKind(asked.strip())
    except ValueError:
        log.warning("traces_not_exported", exporter=asked, hint="OTEL_TRACES_EXPORTER: otlp, console or none")
        return ExporterKind.NONE
    if kind is ExporterKind.OTLP and protocol != "grpc":
        log.warning("traces_not_exported", protocol=protocol, hint="OTEL_EXPORTER_OTLP_PROTOCOL: grpc")
        return ExporterKind.NONE
    return kind


def _default(environ: Mapping[str, str]) -> str:
    kind = ExporterKind.OTLP if any(environ.get(name) for name in _ENDPOINTS) else ExporterKind.NONE
    return kind.value
