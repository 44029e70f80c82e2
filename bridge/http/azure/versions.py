"""The versions of the protocol, and what differs between them here."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.http.azure.errors import AzureError

NEWEST = "2026-10-06"
OLDEST = "2009-09-19"
"""What a request without a version is read as."""
KNOWN = frozenset({
    "2009-09-19", "2011-08-18", "2012-02-12", "2013-08-15", "2014-02-14", "2015-02-21", "2015-04-05", "2015-07-08",
    "2015-12-11", "2016-05-31", "2017-04-17", "2017-07-29", "2017-11-09", "2018-03-28", "2018-11-09", "2019-02-02",
    "2019-07-07", "2019-10-10", "2019-12-12", "2020-02-10", "2020-04-08", "2020-06-12", "2020-08-04", "2020-10-02",
    "2020-12-06", "2021-02-12", "2021-04-10", "2021-06-08", "2021-08-06", "2021-10-04", "2021-12-02", "2022-11-02",
    "2023-01-03", "2023-05-03", "2023-08-03", "2023-11-03", "2024-02-04", "2024-05-04", "2024-08-04", "2024-11-04",
    "2025-01-05", "2025-05-05", "2025-07-05", "2025-11-05", "2026-02-06", "2026-04-06", "2026-06-06", "2026-10-06",
})  # fmt: skip
PUT_ANSWERS = "2016-05-31"
"""From here on the answer to a put has a body."""
LONG_LIVES = "2017-07-29"
"""From here on a message may live longer than seven days."""


def version_of(headers: Mapping[str, str], query: Mapping[str, str]) -> str:
    """Return the version of a request: of its header, else of its signature's ``api-version`` or ``sv``, else `OLDEST`.

    Raises `AzureError`: ``InvalidHeaderValue`` or ``InvalidQueryParameterValue`` for a version that nobody knows.
    """
    version = headers.get("x-ms-version")
    if version is not None:
        if version not in KNOWN:
            raise AzureError("InvalidHeaderValue", details={"HeaderName": "x-ms-version", "HeaderValue": version[:64]})
        return version
    for name in ("api-version", "sv"):
        version = query.get(name)
        if version is not None:
            if version not in KNOWN:
                raise AzureError(
                    "InvalidQueryParameterValue",
                    details={"QueryParameterName": name, "QueryParameterValue": version[:64]},
                )
            return version
    return OLDEST
