"""What is on record of an artifact, as people read it."""

from __future__ import annotations

from typing import Any

import pytest

from halogen.v1 import control_pb2 as pb
from services.cli.artifact_commands import _print
from services.cli.qualification_text import facts, fields, line

BARE = pb.Qualification(artifact_id="a" * 64, build="b" * 64, runtime_build="halogen/0.1.0 cpu")


def with_more(**more: Any) -> pb.Qualification:
    made = pb.Qualification(**more)
    made.MergeFrom(BARE)
    return made


def test_all_that_is_known_is_one_line() -> None:
    """What nobody said is left out."""
    assert "aaaaaaaaaaaa on build bbbbbbbbbbbb, halogen/0.1.0 cpu" == line(BARE)
    full = with_more(
        approved=False,
        accuracy=0.5,
        data_set="d",
        git_commit="c0ffee1",
        probes=[pb.ProbeResult(name="warm_up", passed=True)],
    )
    expected = ", approval withdrawn, accuracy 0.5, data set d, git commit c0ffee1, warm_up passed"
    assert line(BARE) + expected == line(full)


def test_a_statement_says_who_what_and_why() -> None:
    """And when; what it leaves out is left out."""
    full = with_more(
        device={"class": "cpu"},
        probes=[pb.ProbeResult(name="warm_up", passed=False, detail="NaN")],
        statements=[pb.Statement(who="ada", why="release 7", approved=True, data_set="mmlu")],
    )
    full.statements[0].time.FromJsonString("2026-01-02T03:04:05.678Z")
    told = dict(facts(fields(full)))
    assert "ada (release 7): approved True, data_set mmlu" == told["said 2026-01-02T03:04:05"]
    assert ("cpu", "failed NaN") == (told["device class"], told["probe warm_up"])
    assert not {"git_commit", "data_set", "approved"} & told.keys()


def test_what_is_on_record_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """However much somebody had to say; every word of it is there."""
    words = [f"word{number}" for number in range(100)]
    full = with_more(
        graph_root="c" * 64,
        kernels={"name": "cpu_native avx512_bf16", "dtype": "bfloat16"},
        statements=[pb.Statement(who="ada", why=" ".join(words), accuracy=0.5), pb.Statement(who="bob")],
    )
    for statement in full.statements:
        statement.time.FromJsonString("2026-01-02T03:04:05Z")
    _print({"qualifications": [fields(full)]})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert {*words, "a" * 64, "b" * 64, "c" * 64, "bob"} <= {
        word.strip("():") for line in lines for word in line.split()
    }
