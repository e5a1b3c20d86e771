"""Numbers and names that no gateway would take are refused by the command, with the bound."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from services.cli.main import app

PUBLISH = ("publish", "m", "a" * 64)
ROLLBACK, UNPUBLISH, ABORT = (
    (command, "m", "--why", "because") for command in ("rollback", "unpublish", "abort")
)
HUGE = str(2**64)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ((*PUBLISH, "--expected-revision", "-1"), "greater than or equal to 0"),
        ((*ROLLBACK, "--expected-revision", "-1"), "greater than or equal to 0"),
        ((*UNPUBLISH, "--expected-revision", "-1"), "greater than or equal to 0"),
        ((*ABORT, "--expected-revision", HUGE), "less than or equal to 18446744073709551615"),
        ((*ROLLBACK, "--to", HUGE), "less than or equal to 18446744073709551615"),
        (("push", "m", HUGE, "--why", "because"), "less than or equal to 18446744073709551615"),
        (("watch", "m", HUGE), "less than or equal to 18446744073709551615"),
        ((*PUBLISH, "--min-ready", str(2**32)), "less than or equal to 4294967295"),
        ((*PUBLISH, "--memory-guard-ratio", "1.5"), "above 0 and at most 1"),
        ((*PUBLISH, "--memory-guard-ratio", "nan"), "above 0 and at most 1"),
        ((*ROLLBACK, "--memory-guard-ratio", "0"), "above 0 and at most 1"),
        ((*PUBLISH, "--cohort", "stabel"), "'stable', 'canary'"),
    ],
)
def test_what_is_out_of_bounds_is_refused_before_anybody_is_asked(
    command: tuple[str, ...], expected: str
) -> None:
    """Status 2 and the bound, never a trace of our own insides; nothing is registered.

    Fault injection: turns red when an option has no `max`.
    """
    result = CliRunner().invoke(app, [*command, "--address", "127.0.0.1:1"])
    said = " ".join(result.stderr.replace("│", " ").split())
    assert (2, True) == (result.exit_code, expected in said), said
