"""The address of a store that is read over HTTP."""

from __future__ import annotations

from yarl import URL

from services.common.http_url import http_url


def store_url(location: str) -> URL:
    """The URL below which artifacts lie, each under its id.

    Raises:
        InvalidRequest: It is more, or less, than scheme, host, port and a plain path.
    """
    return http_url(location, "store", "--store-token-file")
