"""Configuration: flags over variables over file over defaults, and every fault in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from services.common.config import ProcessConfig
from services.common.rpc.address import Address


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    timeout_ms: int = Field(default=600, ge=1, description="milliseconds")
    ratio: float = Field(default=0.5, description="a part")


class Config(ProcessConfig):
    role = "engine"
    chunk_tokens: int = Field(512, ge=1, description="tokens of a chunk")
    checkpoint: Section = Section()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "engine.yaml"
    path.write_text("chunk_tokens: 2\netcd: [c:1, d:2]\nid: filed\n")
    return path


def test_each_source_overrides_the_weaker_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default, the file, a variable and a flag, in rising order of force."""
    monkeypatch.setenv("HALOGEN_CHUNK_TOKENS", "3")
    monkeypatch.setenv("HALOGEN_LOG_LEVEL", "error")
    config = Config.load(["--config", str(file), "--log-level", "debug"])
    assert ("filed", 3, "debug", 30.0) == (config.id, config.chunk_tokens, config.log_level, config.drain_s)


def test_lists_are_commas_in_flags_and_variables_and_lists_in_files(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One option, written as each place writes lists."""
    by_file = Config.load(["--config", str(file)]).etcd
    by_flag = Config.load(["--etcd", "a:1, b:2"]).etcd
    monkeypatch.setenv("HALOGEN_ETCD", "e:1,f:2")
    assert (("c:1", "d:2"), ("a:1", "b:2"), ("e:1", "f:2")) == (by_file, by_flag, Config.load([]).etcd)


def test_a_section_comes_from_all_sources_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one says of it leaves the rest to the weaker ones.

    Fault injection: turns red without `env_nested_delimiter`.
    """
    path = tmp_path / "engine.yaml"
    path.write_text("checkpoint: {timeout_ms: 1, ratio: 0.1}\n")
    by_file = Config.load(["--config", str(path)]).checkpoint
    monkeypatch.setenv("HALOGEN_CHECKPOINT__TIMEOUT_MS", "2")
    by_variable = Config.load(["--config", str(path)]).checkpoint
    by_flag = Config.load(["--config", str(path), "--checkpoint.timeout-ms", "3"])
    assert [(1, 0.1), (2, 0.1), (3, 0.1)] == [
        (each.timeout_ms, each.ratio) for each in (by_file, by_variable, by_flag.checkpoint)
    ]
    assert {"timeout_ms": 3, "ratio": 0.1} == by_flag.as_event()["checkpoint"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--checkpoint.timeout-ms", "0"], "--checkpoint.timeout-ms: should be greater than or equal to 1"),
        (["--chunk-tokens", "0"], "--chunk-tokens: should be greater than or equal to 1 (got '0')"),
        (["--drain-s", "nan"], "--drain-s: should be a finite number"),
        (["--listen", "nowhere"], "--listen: 'nowhere' is not host:port"),
        (["--log-filter", "("], "--log-filter: is no regular expression: missing )"),
        (["--bogus", "1"], "unrecognized arguments: --bogus"),
    ],
)
def test_a_wrong_setting_is_one_line(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The line names the setting and what is wrong with it; the status is 2."""
    with pytest.raises(SystemExit) as raised:
        Config.load(argv)
    assert 2 == raised.value.code
    assert words in capsys.readouterr().err


def test_an_unknown_name_in_the_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt setting never passes for a default."""
    path = tmp_path / "engine.yaml"
    path.write_text("chunk-tokns: 2\n")
    with pytest.raises(SystemExit):
        Config.load(["--config", str(path)])
    expected = f"{path}: there is no setting 'chunk-tokns'; do you mean chunk_tokens?\n"
    assert capsys.readouterr().err.endswith(expected)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"listen: [", "cannot be read: while parsing"),
        (b"\xff\xfe\xff", "cannot be read: "),
        (b"- a\n- b\n", "give settings as lines"),
        (b"just words", "give settings as lines"),
        (b"bogus: 1", "there is no setting 'bogus'; see --help"),
        (b"checkpoint: {timeout: 1}", "there is no setting 'timeout' in checkpoint; do you mean timeout_ms?"),
        (b"checkpoint: 3", "checkpoint is a section: give lines"),
    ],
)
def test_a_broken_file_is_one_line(
    tmp_path: Path, content: bytes, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the file. Fault injection: `load` catches ValidationError alone."""
    path = tmp_path / "engine.yaml"
    path.write_bytes(content)
    with pytest.raises(SystemExit) as raised:
        Config.load(["--config", str(path)])
    said = capsys.readouterr().err
    assert (2, 1, True) == (raised.value.code, said.count("\n"), f"{path}" in said and words in said)


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    """Only comments: the defaults."""
    path = tmp_path / "engine.yaml"
    path.write_text("# nothing yet\n")
    assert 512 == Config.load(["--config", str(path)]).chunk_tokens


def test_the_event_has_plain_values() -> None:
    """Lists are lists, nothing is null, durations are numbers; addresses are as one writes them."""
    event = Config.load(["--listen", "localhost:1", "--etcd", "a:1,b:2"]).as_event()
    assert {
        "listen": "localhost:1",
        "etcd": ["a:1", "b:2"],
        "etcd_ca_file": None,
        "drain_s": 30.0,
        "chunk_tokens": 512,
    } == {name: event[name] for name in ("listen", "etcd", "etcd_ca_file", "drain_s", "chunk_tokens")}
    assert event == json.loads(json.dumps(event))


def test_a_misspelt_variable_is_told_with_the_one_it_may_be() -> None:
    """Known ones and other processes' are none of it. Fault injection: `misspelt` compares whole names."""
    known = ["HALOGEN_LISTEN", "HALOGEN_CHECKPOINT__RATIO"]
    others = ["HALOGEN_STORE", "HALOGEN_TICKET_KEY_FILE", "PATH"]
    slips = {
        "HALOGEN_CHECKPOINT_TIMEOUT_MS": "HALOGEN_CHECKPOINT__TIMEOUT_MS",
        "HALOGEN_CHUNK_TOKEN": "HALOGEN_CHUNK_TOKENS",
    }
    assert slips == Config.misspelt([*known, *others, *slips])


def test_a_missing_file_is_said() -> None:
    """A file that was asked for is never skipped."""
    with pytest.raises(SystemExit, match="no such file"):
        Config.load(["--config", "/nonexistent.yaml"])


def test_it_is_frozen() -> None:
    """Nothing changes a configuration after its birth."""
    with pytest.raises(ValueError, match="frozen"):
        Config().chunk_tokens = 3  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:70000", "::1:5"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    """Nothing half-understood is bound to."""
    with pytest.raises(ValueError, match=r"host:port|IPv6"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["127.0.0.1:0", "localhost:65535", "[::1]:50051"])
def test_an_address_reads_back(text: str) -> None:
    """What was parsed is what is printed."""
    assert text == str(Address.parse(text))
