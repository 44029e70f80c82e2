"""Which worlds of the models in docs/model are searched, and which wrong turn each of them must catch."""

from __future__ import annotations

from typing import Final

import msgspec


class Run(msgspec.Struct, frozen=True):
    """One set of -D switches; ``mutants`` are the wrong turns that fail there, one at a time."""

    name: str
    switches: str
    mutants: tuple[str, ...] = ()
    model: str = "wake.pml"

    def flags(self, mutant: str | None = None) -> tuple[str, ...]:
        """Return the switches as arguments of spin."""
        words = self.switches.split() + ([mutant] if mutant else [])
        return tuple(f"-D{word}" for word in words)


def _two(name: str, switches: str, *mutants: str) -> Run:
    return Run(name, switches, mutants, "cluster.pml")


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
    _two("two bridges, deaf to one trigger", "M=2 F_TRIGGER=1", "W3", "W10"),
    _two("... by the clock", "M=1 FRESH F_TRIGGER=1 TICKS=1", "W1", "W13", "W21"),
    _two("... and the second sleeps", "M=1 FRESH F_TRIGGER=1 F_SUSPEND=1 SECOND TICKS=1 STOPS EXACTLY", "W2"),
    _two("... and the first sleeps", "M=1 FRESH F_TRIGGER=1 F_SUSPEND=1 FIRST TICKS=1 STOPS EXACTLY"),
    _two("... and what is due later", "M=2 LATER F_TRIGGER=1", "W4"),
    _two("... and few ids", "M=2 IDS=1 F_TRIGGER=1", "W11"),
    _two("... and a handler hangs", "M=2 F_HANG=1 F_TRIGGER=1", "W19"),
    _two("... and words are lost and come twice", "M=1 FRESH F_TRIGGER=1 F_LOST=1 F_TWICE=1 TICKS=1"),
    _two("... and late", "M=2 F_TRIGGER=1 F_LATE=1 F_TWICE=1"),
    _two("a deferral ends", "M=2 TICKS=2 DEADLINE=1", "W5"),
    _two("the time of a cover", "M=1 TICKS=2 COVERAGE", "W6"),
    _two("a planned leave", "M=1 F_LEAVE=1 FIRST CALM", "W7"),
    _two("... and a worker dies", "M=1 F_LEAVE=1 F_CRASH=1 FIRST SEATED CALM", "W20"),
    _two("a newcomer", "M=2 JOIN AT0=1 AT1=9 CALM", "W8"),
    _two("told by one that dies", "M=2 ONE AT0=1 AT1=9 F_BRIDGE=1 FIRST NO_C5", "W9"),
    _two("the first dies", "M=2 F_BRIDGE=1 FIRST NO_C5", "W12"),
    _two("... one id for now and later", "M=1 TWIN F_BRIDGE=1 FIRST NO_C5", "W15"),
    _two("two stores", "M=2 STAGING F_TWICE=1", "W14"),
    _two("a worker dies", "M=1 F_CRASH=1", "W18"),
    _two("... and a bridge", "M=1 F_CRASH=1 F_BRIDGE=1 SEATED", "W17"),
    _two("what one heard is lost with it", "M=2 ONE AT0=1 AT1=9 F_BRIDGE=1 F_LOST=1 FIRST", "W17"),
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
