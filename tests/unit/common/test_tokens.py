"""Tokens: known by their digests, handed out and replaced while everything runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.common.auth.principal import Principal
from services.common.auth.role import Role
from services.common.auth.tokens import Tokens, digest_of, fresh_token, line_of
from services.common.errors import Unauthenticated
from services.common.reread_file import LOOK_S, RereadFile
from services.common.rpc.credentials import Credentials
from services.common.token_file import read_token
from tests.credentials import hand_out, write_secret

DIGEST = "ab" * 32


def test_a_token_tells_its_holder(tmp_path: Path) -> None:
    """Each its own, by name and role; one that is not in the file is nobody's."""
    handed = hand_out(tmp_path, team_a=Role.INFER)
    tokens = Tokens.read(handed.callers_file)
    expected = {
        "team_a": Principal("team_a", Role.INFER),
        **{role.value: Principal(role, role) for role in Role},
    }
    assert expected == {name: tokens.holder(token) for name, token in handed.tokens.items()}
    for unknown in (fresh_token(), "", handed.tokens["infer"][:-1], handed.tokens["infer"] + "x", "é"):
        with pytest.raises(Unauthenticated, match="not known here"):
            tokens.holder(unknown)


def test_digests_with_the_same_beginning_are_told_apart(tmp_path: Path) -> None:
    """The beginning finds candidates, the whole decides.

    Fault injection: turns red when `holder` returns the first entry of a beginning.
    """
    token = fresh_token()
    digest = line_of(Principal("b", Role.INFER), token).split()[2]
    twin = digest[:16] + "0" * 48
    write_secret(tmp_path / "tokens", f"admin a {twin}\ninfer b {digest}\n")
    assert Principal("b", Role.INFER) == Tokens.read(tmp_path / "tokens").holder(token)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("infer a", "three words"),
        (f"infer a {DIGEST} x", "three words"),
        ("infer a secret-in-the-clear", "no sha256"),
        (f"infer a {DIGEST.upper()}", "no sha256"),
        (f"root a {DIGEST}", "no role 'root'"),
        (f"infer a/b {DIGEST}", "no name"),
    ],
)
def test_a_line_of_another_form_is_named(line: str, why: str, tmp_path: Path) -> None:
    """File, line and what it should be; never what stands in the place of the digest."""
    write_secret(tmp_path / "tokens", f"\n{line}\n")
    with pytest.raises(ValueError, match=rf"tokens, line 2: .*{why}.*") as fault:
        Tokens.read(tmp_path / "tokens")
    assert "secret-in-the-clear" not in str(fault.value)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (Path.unlink, "no such file"),
        (lambda path: path.chmod(0o644), "chmod 600"),
        (lambda path: path.chmod(0o660), "chmod 600"),
        (lambda path: path.write_text("# nobody\n"), "names nobody"),
        (lambda path: path.write_text("x" * (2 << 20)), "longer"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused(
    spoil: Callable[[Path], object], why: str, tmp_path: Path
) -> None:
    """Missing, open to others, empty, endless: one line that says what to do."""
    file = hand_out(tmp_path).callers_file
    spoil(file)
    with pytest.raises(ValueError, match=why):
        Tokens.read(file)


def test_a_group_may_share_the_file(tmp_path: Path) -> None:
    """Processes that are different users read one file through their group."""
    file = hand_out(tmp_path).callers_file
    file.chmod(0o640)
    Tokens.read(file)


def test_a_changed_file_is_read_again_without_a_restart(tmp_path: Path) -> None:
    """A token that came in is taken, one that went is not, a second later at most; until then nothing is read.

    Fault injection: turns red when `RereadFile` does not look, or looks at every question.
    """
    now, old = 0.0, hand_out(tmp_path)
    file = RereadFile(old.callers_file, Tokens.read, lambda: now)
    new = hand_out(tmp_path)
    assert Role.INFER == file().holder(old.tokens["infer"]).role
    now = LOOK_S
    assert Role.INFER == file().holder(new.tokens["infer"]).role
    with pytest.raises(Unauthenticated):
        file().holder(old.tokens["infer"])


def test_a_file_that_went_bad_changes_nothing(tmp_path: Path) -> None:
    """Half a file, or none, lets nobody out; the log says so once, as an error, and the good one that follows is taken.

    Until then it is told that what holds is not what the file says: also a line that was taken out holds.

    Fault injection: turns red when `is_taken` does not look, or a file that was mended is not taken.
    """
    now, handed = 0.0, hand_out(tmp_path)
    file = RereadFile(handed.callers_file, Tokens.read, lambda: now)
    with capture_logs() as logs:
        for spoil in (lambda: write_secret(handed.callers_file, "infer"), handed.callers_file.unlink):
            spoil()
            for _ in range(2):
                now += LOOK_S
                assert not file.is_taken
                assert Role.INFER == file().holder(handed.tokens["infer"]).role
        new = hand_out(tmp_path)
        now += LOOK_S
        assert file.is_taken
        assert Role.INFER == file().holder(new.tokens["infer"]).role
    told = [(entry["event"], entry["log_level"]) for entry in logs]
    assert [("file_not_taken", "error")] * 2 + [("file_read_again", "info")] == told
    assert "line 1" in logs[0]["error"]


def test_a_file_that_was_mended_by_its_mode_is_taken(tmp_path: Path) -> None:
    """Open to others it is refused; the chmod that the message asks for is enough.

    Fault injection: turns red when only time, size and inode tell files apart.
    """
    now, old = 0.0, hand_out(tmp_path)
    file = RereadFile(old.callers_file, Tokens.read, lambda: now)
    new = hand_out(tmp_path)
    new.callers_file.chmod(0o644)
    now += LOOK_S
    assert Role.INFER == file().holder(old.tokens["infer"]).role
    new.callers_file.chmod(0o600)
    now += LOOK_S
    assert Role.INFER == file().holder(new.tokens["infer"]).role


def test_a_token_is_withdrawn_also_where_the_files_time_is_kept(tmp_path: Path) -> None:
    """Overwritten by as many bytes, with the time that it had, as copying tools do.

    Fault injection: turns red when only time, size and inode tell files apart.
    """
    now, handed = 0.0, hand_out(tmp_path)
    callers = handed.callers_file
    file, before = RereadFile(callers, Tokens.read, lambda: now), callers.stat()
    callers.write_text(callers.read_text().replace(digest_of(handed.tokens["infer"]).hex(), DIGEST))
    while callers.stat().st_ctime_ns == before.st_ctime_ns:  # clocks of file systems are coarse
        os.utime(callers, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(callers, ns=(before.st_atime_ns, before.st_mtime_ns))
    now += LOOK_S
    with pytest.raises(Unauthenticated):
        file().holder(handed.tokens["infer"])


def test_a_callers_own_token_comes_from_a_file_or_is_said(tmp_path: Path) -> None:
    """The file may end in a new line; what is no single word of ASCII is refused before it is sent."""
    handed = hand_out(tmp_path)
    assert handed.tokens["system"] == Credentials.of(token_file=handed.system_file).token()
    assert "said" == Credentials.of(token="said").token()
    assert "" == Credentials.of().token()
    with pytest.raises(ValueError, match="not both"):
        Credentials.of(token="said", token_file=handed.system_file)
    for content in ("", "two words", "é"):
        write_secret(tmp_path / "bad", content)
        with pytest.raises(ValueError, match="not one word"):
            read_token(tmp_path / "bad")
