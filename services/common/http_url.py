"""The address of somebody else's HTTP server, as a setting gives it."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from yarl import URL

from services.common.errors import InvalidRequest
from services.common.store_location import SCHEMES


def http_url(location: str, of: str, token_setting: str) -> URL:
    """The URL that everything of that server lies below.

    Args:
        location: As it was given.
        of: What it is the address of, for example store.
        token_setting: Where a credential belongs, for example --store-token-file.

    Raises:
        InvalidRequest: It is more, or less, than scheme, host, port and a plain path.
    """
    parts = urlsplit(location)
    if any(part in (".", "..") for part in unquote(parts.path).split("/")):
        raise _refused(of, location, "a path without . and ..")
    if parts.query or parts.fragment or "?" in location or "#" in location:
        raise _refused(of, location, "no query and no fragment")
    if parts.username is not None or parts.password is not None:
        raise _refused(of, f"{parts.scheme}://...", f"no user in it, but {token_setting}")
    try:
        url = URL(location)
    except ValueError:
        raise _refused(of, location, "http://host:port/path/") from None
    if url.scheme not in SCHEMES or not url.host:
        raise _refused(of, location, "http://host:port/path/")
    return url


def _refused(of: str, location: str, wanted: str) -> InvalidRequest:
    return InvalidRequest(
        f"{of} {location!r}: give an http(s) URL with {wanted}", reason=f"{of.upper()}_URL_INVALID"
    )
