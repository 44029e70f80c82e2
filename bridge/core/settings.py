"""The numbers of the wake protocol, bridge's side; each has its reason in docs/guarantees.md."""

from __future__ import annotations

from typing import Literal

import msgspec


class Periods(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds; the letters are those of the protocol."""

    heartbeat_s: float = 5.0
    """H at its shortest; grows by 2.5 ms a session. Defaults to 5 s."""
    start_ack_s: float = 2.0
    """A: how long the bridge waits for `started`. Defaults to 2 s."""
    store_call_s: float = 10.0
    """R: how long one store call may take. Defaults to 10 s."""
    sweep_s: float = 60.0
    """T: the sweep's period; 0 switches sweeps off. Defaults to 60 s."""
    wake: Literal["enough", "all"] = "enough"
    """Whom a wake reaches: as many sessions as its size hint asks for, or all. Defaults to enough."""
    queues_max: int = 100_000
    """Known queue names; clean ones without a subscriber go first. Defaults to 100,000."""
