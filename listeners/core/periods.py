"""The numbers of the wake protocol, listener's side: what a welcome says of one queue."""

from __future__ import annotations

import msgspec

from bridge.contract.bounds import SLACK_S, SPREAD_S, STORE_CALL_S, SWEEP_S


class Periods(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one queue, in seconds; the letters are those of the protocol."""

    sweep_s: float = SWEEP_S
    """T: the bridge's sweep; 0 where there is none. Defaults to 60 s."""
    slack_s: float = SLACK_S
    """S: what the dead-man timer waits beyond the sweep. Defaults to 30 s."""
    spread_s: float = SPREAD_S
    """w at its smallest: over how long a fleet's dead-man timers are spread. Defaults to 10 s."""
    store_call_s: float = STORE_CALL_S
    """R: how long one store call may take. Defaults to 10 s."""
