"""The constant times of the simulated world, and the order of what happens at one moment."""

from __future__ import annotations

from typing import Final

CALL_S: Final = 1 / 128
"""What a call of the store takes, 7.8 ms. A power of two, so that a day of them adds up without rounding."""
PATH_S: Final = 1 / 1024
"""What a trigger or a frame takes on its way, 1 ms."""
START_S: Final = 1.0
"""What a process takes from its start until its listener says hello, unless told otherwise: Python and its imports."""
STAGGER_S: Final = 1.0
"""Within which time the listeners start, at moments drawn at random."""
