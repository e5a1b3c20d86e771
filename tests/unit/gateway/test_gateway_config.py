"""The gateway's settings."""

from __future__ import annotations

import pytest

from services.gateway.config import GatewayConfig


def test_several_loaders_are_a_comma_separated_list() -> None:
    """Order is kept; the limits are passed on as one thing."""
    config = GatewayConfig.load(["--loader", "a:1, [::1]:2", "--default-max-tokens", "9"])
    assert ("a:1", "[::1]:2") == config.loader
    assert 9 == config.limits.default_max_tokens


@pytest.mark.parametrize(
    "argv",
    [["--loader", "a"], ["--loader", ""], ["--max-prompt-bytes", "0"], ["--default-max-tokens", "0"]],
    ids=" ".join,
)
def test_a_wrong_setting_is_named(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The process does not start, and one line says which flag it was."""
    with pytest.raises(SystemExit):
        GatewayConfig.load(argv)
    assert argv[0] in capsys.readouterr().err
