"""What one run came to."""

from __future__ import annotations

import msgspec


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the checkers measured (`Checks.figures`)."""

    bound_s: float | None = None
    """B of I1, None where the plan promises none."""
    worst_gap_s: dict[str, float] = {}
    """By situation: the longest that visible work waited for a receive while a listener could have begun one."""
    calm_receives: int = 0
    """Receives of queues that had been empty for long (I2), and how many seconds of such queues were watched."""
    calm_s: float = 0.0
    restarts: int = 0
    """Bridge restarts watched on calm queues (I6), and the most receives that one queue saw in one of them."""
    restart_receives: int = 0
    triggers: int = 0
    """Triggers published in the phase with faults, over how many seconds from the first, and the receives meanwhile."""
    load_s: float = 0.0
    load_receives: int = 0
    words: dict[str, int] = {}
    """By kind: what bridges said to each other meanwhile."""
    checked: dict[str, int] = {}
    """How often each checker had something to check."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of one run and its figures; two runs of equal plan, seed and faults have equal outcomes.

    ``total`` has Jepsen's numbers: attempted, acknowledged, lost, duplicated, recovered, unexpected. ``coverage``
    counts how often a run got into each situation worth reaching. ``receives_per_hour_empty`` is of the quiet phase,
    None where there was none. ``story`` is empty unless it was asked for.
    """

    seed: int
    plan: str
    ok: bool
    violations: list[str]
    total: dict[str, int]
    receives_per_hour_empty: float | None
    coverage: dict[str, int]
    trace_sha256: str
    virtual_s: float
    steps: int
    story: list[str] = []
    figures: Figures = Figures()
