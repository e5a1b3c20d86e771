"""The gateway's settings."""

from __future__ import annotations

import pytest

from services.gateway.config import GatewayConfig


def test_the_limits_are_passed_on_as_one_thing() -> None:
    """Flags are what requests are bounded by."""
    config = GatewayConfig.load(["--default-max-tokens", "9"])
    assert 9 == config.limits.default_max_tokens


@pytest.mark.parametrize(
    "argv",
    [["--listen", "a"], ["--lease-ttl-s", "0"], ["--max-prompt-bytes", "0"], ["--default-max-tokens", "0"]],
    ids=" ".join,
)
def test_a_wrong_setting_is_named(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The process does not start, and one line says which flag it was."""
    with pytest.raises(SystemExit):
        GatewayConfig.load(argv)
    assert argv[0] in capsys.readouterr().err
