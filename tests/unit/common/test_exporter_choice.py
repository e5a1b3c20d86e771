"""Whether spans are exported is what the standard variables say."""

from __future__ import annotations

import pytest

from services.common.telemetry.exporter_choice import ExporterKind, choose_exporter

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ExporterKind.NONE),
        (ENDPOINT, ExporterKind.OTLP),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4317"}, ExporterKind.OTLP),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ExporterKind.NONE),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ExporterKind.OTLP),
        ({"OTEL_TRACES_EXPORTER": "console"}, ExporterKind.CONSOLE),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, ExporterKind.NONE),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, ExporterKind.NONE),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ExporterKind.OTLP),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ExporterKind.NONE),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "zipkin"}, ExporterKind.NONE),
    ],
)
def test_the_environment_decides(environ: dict[str, str], expected: ExporterKind) -> None:
    """An endpoint asks for OTLP; what cannot be done is not done, and never an error."""
    assert expected == choose_exporter(environ)
