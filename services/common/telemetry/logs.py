"""Logs are events: one JSON object a line on standard error, snake_case event names, ids bound once."""

from __future__ import annotations

import logging
import re
import sys

import structlog
from opentelemetry import trace
from structlog.typing import EventDict, WrappedLogger

from services.common.telemetry.log_filter import LogFilter

LEVELS = logging.getLevelNamesMapping()


def configure_logs(role: str, level: str, log_filter: str = "") -> None:
    """Sends structlog's events, and the standard library's warnings, to standard error as JSON lines.

    Args:
        role: The process's name in every event ("gateway", ...).
        level: "debug", "info", "warning" or "error".
        log_filter: A regular expression: below a warning, only events whose component or name it is found in are logged.
    """
    structlog.configure(
        processors=[
            LogFilter(re.compile(log_filter)),
            structlog.contextvars.merge_contextvars,
            add_trace,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("event"),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(role=role)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, force=True)


def add_trace(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:  # noqa: ARG001  # structlog passes them
    """Names the span in which an event happened, if there is one."""
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event
