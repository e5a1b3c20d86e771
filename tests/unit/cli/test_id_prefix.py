"""An artifact's id may be given by its beginning, as a status shows it."""

from __future__ import annotations

import pytest

from services.cli.console import CommandError
from services.cli.id_prefix import completed

ONE, OTHER = "0123456789" + "a" * 54, "0123456789" + "b" * 54


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (ONE, ONE),
        (ONE[:11], ONE),
        (OTHER[:12], OTHER),
        ("f" * 8, None),
        (ONE[:7], None),
        ("", None),
        (ONE[:11].upper(), None),
        (ONE + "a", None),
    ],
)
def test_the_one_that_begins_so_is_meant(given: str, expected: str | None) -> None:
    """Eight digits or more; of an artifact that two models have there is one."""
    assert expected == completed(given, [ONE, OTHER, ONE])


def test_what_begins_two_is_refused_with_both() -> None:
    """Fault injection: turns red when `completed` takes the first."""
    with pytest.raises(CommandError, match=f"{ONE[:10]} is the beginning of {ONE} and of {OTHER}; give more"):
        completed(ONE[:10], [OTHER, ONE])
