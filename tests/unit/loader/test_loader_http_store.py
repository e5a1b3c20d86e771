"""What is understood of a store's address and of its answers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from yarl import URL

from services.common.errors import CorruptData, InvalidRequest, NotFound, PreconditionFailed
from services.common.store_location import is_http
from services.loader.http_store import redirected
from services.loader.patience import WORTH_BYTES, BrokenOff, Patience
from services.loader.range_answer import RangeAnswer
from services.loader.store_url import store_url


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("http://store", True),
        ("https://store:8443/a/", True),
        ("HTTPS://store/a", True),
        ("/srv/store", False),
        ("file:///srv/store", False),
        ("s3://bucket", False),
        ("store", False),
    ],
)
def test_a_store_over_http_is_told_by_its_scheme(location: str, expected: bool) -> None:
    """All else is a directory, or refused as one."""
    assert expected == is_http(location)


# Turns red when: store_url does not decode the path before it looks for dots.
@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("http:///artifacts", "http://host:port/path/"),
        ("http://store/a/../b", "without . and .."),
        ("http://store/%2e%2e/b", "without . and .."),
        ("http://store/a?versions", "no query"),
        ("http://store/a#b", "no query and no fragment"),
        ("http://ada:secret@store/a", "--store-token-file"),
        ("http://store:port/a", "http://host:port/path/"),
        ("file:///etc/passwd", "http://host:port/path/"),
    ],
)
def test_r_f2_an_address_is_plain_or_refused(location: str, expected: str) -> None:
    """Nothing in it leads elsewhere; a password in it is not repeated."""
    with pytest.raises(InvalidRequest) as refusal:
        store_url(location)
    assert expected in refusal.value.message
    assert "secret" not in refusal.value.message


def test_files_lie_below_the_address() -> None:
    """With or without a slash at its end."""
    for location in ("http://store:81/a%20b", "http://store:81/a%20b/"):
        assert "http://store:81/a%20b/0/x.json" == str(store_url(location).joinpath("0", "x.json"))


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (200, {}, RangeAnswer(0, None, "", is_part=False)),
        (200, {"Content-Length": "7", "ETag": '"a"'}, RangeAnswer(0, 7, '"a"', is_part=False)),
        (206, {"Content-Range": "bytes 3-5/9"}, RangeAnswer(3, 9, "", is_part=True)),
        (206, {"Content-Range": "bytes 3-5/*", "Last-Modified": "now"}, RangeAnswer(3, None, "now", is_part=True)),
        (206, {"Content-Range": "bytes 0-0/1", "ETag": "W/x", "Last-Modified": "now"}, RangeAnswer(0, 1, "W/x", is_part=True)),
    ],
)  # fmt: skip
def test_an_answer_is_read(status: int, headers: Mapping[str, str], expected: RangeAnswer) -> None:
    """What it brings, of how much, and of which version."""
    assert expected == RangeAnswer.of(status, headers, "x")


@pytest.mark.parametrize(
    ("status", "headers", "kind", "expected"),
    [
        (206, {}, BrokenOff, "without saying which"),
        (206, {"Content-Range": "items 3-5/9"}, BrokenOff, "without saying which"),
        (200, {"Content-Encoding": "gzip"}, PreconditionFailed, "compresses it"),
        (404, {}, NotFound, "x is not in the store"),
        (410, {}, NotFound, "x is not in the store"),
        (401, {}, PreconditionFailed, "--store-token-file"),
        (403, {}, PreconditionFailed, "answers 403"),
        (304, {}, PreconditionFailed, "answers 304"),
        (416, {}, CorruptData, "x is shorter in the store"),
        (408, {}, BrokenOff, "408"),
        (429, {}, BrokenOff, "429"),
        (500, {}, BrokenOff, "it answers 500"),
        (503, {}, BrokenOff, "503"),
    ],
)
def test_an_answer_of_no_use_says_what_helps(
    status: int, headers: Mapping[str, str], kind: type[Exception], expected: str
) -> None:
    """Another try, or somebody's deed."""
    with pytest.raises(kind, match=expected):
        RangeAnswer.of(status, headers, "x")


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/c", "http://store/c"),
        ("c", "http://store/a/c"),
        ("//other/c", "http://other/c"),
        ("http://other:8/c?signature=1%2B2", "http://other:8/c?signature=1%2B2"),
    ],
)
def test_a_redirect_is_followed_within_its_scheme(location: str, expected: str) -> None:
    """To another host too, with what was signed left as it is."""
    assert expected == str(redirected(URL("http://store/a/b"), location))


@pytest.mark.parametrize("location", ["", "file:///etc/passwd", "https://store/a", "ftp://store/", "data:,x"])
def test_r_f2_a_redirect_never_leads_to_another_scheme(location: str) -> None:
    """Nor nowhere. Turns red when: redirected does not compare the schemes."""
    with pytest.raises(PreconditionFailed, match="redirects from http to"):
        redirected(URL("http://store/a/b"), location)


async def test_patience_ends_with_failures_in_a_row() -> None:
    """Bytes in between, if they are worth it, begin the count anew."""
    patience = Patience(tries=2, first_pause_s=0.0, most_pause_s=0.0)
    for _ in range(3):
        await patience.after(BrokenOff("it sleeps"))
        patience.arrived(WORTH_BYTES)
    await patience.after(BrokenOff("it sleeps"))
    patience.arrived(WORTH_BYTES - 1)
    with pytest.raises(Exception, match=r"again and again \(it sleeps\)"):
        await patience.after(BrokenOff("it sleeps"))
