"""What was written to a connection and lies with us still, with TLS or without.

asyncio's TLS has a transport of its own and hands all that it can to the one below, where most of what a peer does not
read lies; of that it says nothing. With no allowance (``high=0``) it tells at every turn at which it keeps nothing
itself, alternately to pause and to resume, whatever lies below: each is a moment to look, and none is more than that.
"""

from __future__ import annotations

import asyncio
from typing import cast


def tell_of_every_byte(wire: asyncio.Transport) -> asyncio.Transport | None:
    """Have the protocol told of every byte that the kernel does not take; return the transport below, if there is TLS.

    asyncio has no public way to that one.
    """
    tls = getattr(wire, "_ssl_protocol", None)
    below = cast("asyncio.Transport | None", getattr(tls, "_transport", None))
    if below is not None:
        # First, so that the first look finds all.
        below.set_write_buffer_limits(high=0)
    wire.set_write_buffer_limits(high=0)
    return below


def unsent_bytes(wire: asyncio.Transport, below: asyncio.Transport | None) -> int:
    """Return how many bytes the kernel has not taken."""
    if below is None:
        return wire.get_write_buffer_size()
    # Closed a second time, a TLS transport has let go of what could tell.
    own = 0 if getattr(wire, "_ssl_protocol", None) is None else wire.get_write_buffer_size()
    return own + below.get_write_buffer_size()
