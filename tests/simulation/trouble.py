"""What is wrong with the store, the triggers and the broker's frames just now; faults turn these knobs."""

from __future__ import annotations

from typing import Final

RECEIVES: Final = ("down", "slow", "errors", "false_empty", "receive_unknown")
"""What keeps a receive from its answer, or makes the answer wrong; a put or a settlement whose answer is lost does
not."""


class Trouble:
    """Levels by name, each the sum of what the faults that last ask for; 0 is health. Shares go up to 1."""

    __slots__ = ("_levels", "store_works")

    def __init__(self) -> None:
        self.store_works = True
        """Whether receives are answered as they should be."""
        self._levels: dict[str, list[float]] = {}

    def __getitem__(self, name: str) -> float:
        return max(self._levels.get(name) or (0.0,))

    def begin(self, name: str, value: float) -> None:
        """One more fault of this kind."""
        self._levels.setdefault(name, []).append(value)
        self._look()

    def end(self, name: str, value: float) -> None:
        """One fault less."""
        self._levels[name].remove(value)
        self._look()

    def _look(self) -> None:
        self.store_works = not any(self._levels.get(name) for name in RECEIVES)
