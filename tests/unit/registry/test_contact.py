"""What a process says of its contact with the registry."""

from __future__ import annotations

from structlog.testing import capture_logs

from services.common.registry.contact import RegistryContact


def test_a_loss_is_one_line_and_its_end_another() -> None:
    """However often it is tried in between; the reason is the latest.

    Fault injection: turns red when every failed try is logged.
    """
    contact = RegistryContact()
    with capture_logs() as logs:
        for _ in range(2):
            contact.regained()
            contact.lost("no endpoint answers")
            contact.lost("still none")
            assert "still none" == contact.stale
        contact.regained()
    assert "" == contact.stale
    assert 2 * ["registry_lost", "registry_regained"] == [entry["event"] for entry in logs]


def test_what_has_vanished_is_missed_until_it_is_there() -> None:
    """The first is named, the others are counted, and a registry that answers does not make up for them."""
    contact = RegistryContact()
    for key in ("targets/a/stable", "serving/a/stable", "targets/a/stable"):
        contact.vanished(key)
    contact.regained()
    assert "targets/a/stable has vanished from the registry, and 1 more have" == contact.stale
    contact.there("targets/a/stable")
    assert "serving/a/stable has vanished from the registry" == contact.stale
    contact.there("serving/a/stable")
    assert "" == contact.stale
