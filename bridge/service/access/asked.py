"""One request to an issuer: as much of its answer as is wanted, from the address that was given and from no other."""

from __future__ import annotations

from collections.abc import Mapping


async def asked(
    url: str, most: int, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """GET an address, or POST a ``form`` to it; return the status and the body, cut one byte past ``most``.

    No redirect is followed: the answer would be another's. Raises what aiohttp raises; for how long is the caller's.
    """
    import aiohttp

    async with (
        aiohttp.ClientSession() as client,
        client.request(
            "GET" if form is None else "POST",
            url,
            data=form,
            allow_redirects=False,
            headers={"Accept": "application/json", **(headers or {})},
        ) as answer,
    ):
        raw = b""
        while len(raw) <= most and (part := await answer.content.read(most + 1 - len(raw))):
            raw += part
        return answer.status, raw
