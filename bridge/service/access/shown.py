"""The certificate that a client showed over TLS, as the standard library has read and verified it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from bridge.core.sans import Certificate, names_in


def certificate_of(peer: Mapping[str, object] | None) -> Certificate | None:
    """Return what `ssl.SSLObject.getpeercert` tells of a verified certificate, None where its peer showed none."""
    ends = peer.get("notAfter") if peer else None
    if peer is None or not isinstance(ends, str):
        return None
    try:
        return Certificate(names_in(peer), float(ssl.cert_time_to_seconds(ends)))
    except ValueError:
        # A date that cannot be read ends nothing.
        return None
