"""The address of a store that is read over HTTP."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from yarl import URL

from services.common.errors import InvalidRequest
from services.common.store_location import SCHEMES


def store_url(location: str) -> URL:
    """The URL below which artifacts lie, each under its id.

    Raises:
        InvalidRequest: It is more, or less, than scheme, host, port and a plain path.
    """
    parts = urlsplit(location)
    if any(part in (".", "..") for part in unquote(parts.path).split("/")):
        raise _refused(location, "a path without . and ..")
    if parts.query or parts.fragment or "?" in location or "#" in location:
        raise _refused(location, "no query and no fragment")
    if parts.username is not None or parts.password is not None:
        raise _refused("it", "no user in it, but --store-token-file")
    try:
        url = URL(location)
    except ValueError:
        raise _refused(location, "http://host:port/path/") from None
    if url.scheme not in SCHEMES or not url.host:
        raise _refused(location, "http://host:port/path/")
    return url


def _refused(location: str, wanted: str) -> InvalidRequest:
    return InvalidRequest(
        f"store {location!r}: give an http(s) URL with {wanted}", reason="STORE_URL_INVALID"
    )
