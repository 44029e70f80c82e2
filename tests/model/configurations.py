"""Which worlds of docs/model/wake.pml are searched, and which wrong turn each of them must catch."""

from __future__ import annotations

from typing import Final

import msgspec


class Run(msgspec.Struct, frozen=True):
    """One set of -D switches; ``mutants`` are the wrong turns that fail there, one at a time."""

    name: str
    switches: str
    mutants: tuple[str, ...] = ()

    def flags(self, mutant: str | None = None) -> tuple[str, ...]:
        """Return the switches as arguments of spin."""
        words = self.switches.split() + ([mutant] if mutant else [])
        return tuple(f"-D{word}" for word in words)


SMALL: Final = (
    Run("one listener", "NL=1 M=2", ("V2", "V5", "V6", "V6L", "V9", "V15", "V16", "V18")),
    Run("a listener that comes later", "NL=1 M=1 F_CRASH=1 F_REVIVE=1", ("V1", "V7", "V14E", "W3")),
    Run("without B5", "NL=1 M=2 NO_B5 F_UP=1", ("V12",)),
    Run("a lost wake", "NL=1 M=1 F_DOWN=1", ("V3",)),
    Run("a bridge that restarts", "NL=1 M=1 F_BRIDGE=1", ("V4",)),
    Run("hung handlers", "NL=1 M=2 F_HANG=1", ("V11",)),
    Run("hung handlers, two slots", "NL=1 M=2 SLOTS=2 F_HANG=1", ("V10",)),
    Run("an unknown outcome", "NL=1 M=1 F_UNKNOWN=1", ("V13",)),
    Run("delayed", "NL=1 M=2 DELAYED=1", ("V14E", "V14S")),
    Run("a new instance, without B5", "NL=1 M=1 NO_B5 F_CRASH=1 F_REVIVE=1", ("V17",)),
    Run("barred", "NL=1 M=1 F_UP=1 F_HASTY=1", ("W1",)),
    Run("a restart, then a crash", "NL=1 M=1 F_CRASH=1 F_REVIVE=1 F_BRIDGE=1 SEATED", ("W2",)),
    Run("a stop", "NL=1 M=1 F_STOP=1 F_REVIVE=1"),
    Run("an error", "NL=1 M=1 F_ERROR=1"),
    Run("a cut", "NL=1 M=1 F_CUT=1"),
    Run("two listeners", "NL=2 M=1"),
    Run("slow receives", "NL=1 M=2 SLOW", ("W5",)),
    Run("two listeners, one full", "NL=2 M=1 NO_B5 FULL=0", ("V8",)),
    Run("a lease of nobody, and no slot", "NL=2 M=0 FULL=1", ("W4",)),
)
"""Seconds each: the test run."""

LARGE: Final = (
    Run("a queue met again", "NL=1 M=1 NO_B5 F_CUT=1 F_FORGET=1 F_DOWN=1 POLL EXACTLY", ("V19",)),
    Run("two listeners, slow receives", "NL=2 M=1 SLOW", ("W5",)),
    Run("two listeners, one full, a lease of nobody", "NL=2 M=1 FULL=1"),
    Run("two listeners, a stop", "NL=2 M=1 F_STOP=1"),
    Run("sweep: lost triggers", "NL=1 M=2 SWEEP F_BUS=1 F_PRODUCER=1"),
    Run("sweep: crash and restart", "NL=1 M=1 SWEEP F_CRASH=1 F_REVIVE=1 F_BRIDGE=1"),
    Run("sweep: two listeners, lost triggers", "NL=2 M=1 SWEEP F_BUS=1 F_PRODUCER=1"),
    Run("dead-man: lost triggers", "NL=1 M=2 DEADMAN F_BUS=1 F_PRODUCER=1"),
    Run("dead-man: two listeners, lost triggers", "NL=2 M=1 DEADMAN F_BUS=1 F_PRODUCER=1"),
)
"""Minutes each: `make prove-all`."""
