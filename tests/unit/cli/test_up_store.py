"""`halogen up` from a store of one's own choice: what is served is named by its id where nothing can be put there."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli import run_state, up
from services.cli.console import CommandError
from services.cli.home import Home
from services.cli.run_state import Addresses
from services.cli.stack import commands
from services.common.checkpoint.load_format import LoadFormat
from services.common.errors import InvalidRequest
from services.common.ids import ArtifactId

ADDRESSES = Addresses(
    etcd="a:1",
    etcd_peer="a:2",
    loader="b:2",
    engine="c:3",
    scheduler="d:4",
    gateway="e:5",
    http=dict.fromkeys(("gateway", "scheduler", "engine", "loader"), "f:6"),
)
URL = "https://store.example/artifacts/"
ID = "a" * 64


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.chdir(tmp_path)
    made = Home(tmp_path / ".halogen")
    made.make()
    return made


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, ".halogen/store"), ("mine", "mine"), ("file:///srv/store", "/srv/store"), (URL, URL)],
)
def test_the_loader_reads_the_store_that_was_given(
    home: Home, tmp_path: Path, given: str | None, expected: str
) -> None:
    """A directory wherever the process stands, or a URL; the home's own when none is given.

    Fault injection: `commands` gives the loader the home's store.
    """
    reading = home.reading(given)
    store = expected if expected == URL else str(tmp_path / expected)
    assert store == reading.loaders_store
    loader = next(command for command in commands(reading, ADDRESSES) if command.name == "loader")
    assert store == loader.argv[loader.argv.index("--store") + 1]


def test_a_store_that_no_loader_reads_is_refused(home: Home) -> None:
    """By the line that says what can be given."""
    with pytest.raises(InvalidRequest, match="s3://bucket"):
        home.reading("s3://bucket")


@pytest.mark.parametrize(
    ("model", "source", "expected"),
    [
        (None, None, up.Plan("", None)),
        ("m", Path(ID), up.Plan("m", ArtifactId(ID))),
        (None, Path(ID), "give --model"),
        ("m", Path("a/model"), "--model-path is the id of an artifact there"),
    ],
)
def test_an_artifact_of_an_http_store_is_named_by_its_id(
    home: Home, model: str | None, source: Path | None, expected: up.Plan | str
) -> None:
    """Nothing is fetched or converted here, since nothing can be put there."""
    reading = home.reading(URL)
    if isinstance(expected, str):
        with pytest.raises(CommandError, match=expected):
            up.prepare(reading, model, source, LoadFormat.AUTO)
    else:
        assert expected == up.prepare(reading, model, source, LoadFormat.AUTO)


def test_a_system_with_another_store_is_not_taken_for_the_one_asked_for(home: Home) -> None:
    """One line, with the store that it has."""
    with run_state.hold(home):
        run_state.save(home.reading(URL), ADDRESSES)
        with pytest.raises(CommandError, match=rf"with --store {URL}; stop it with: halogen down"):
            up.greet_running(home, up.Plan("", None))
