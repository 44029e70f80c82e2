"""What a trigger costs while bridges take turns: receives and words, counted from the first trigger to the healing."""

from __future__ import annotations

from collections import Counter


class TurnCost:
    """Counts; ``seconds`` is how long was counted once it is over."""

    def __init__(self) -> None:
        self.triggers = 0
        self.receives = 0
        self.words: Counter[str] = Counter()
        self.seconds = 0.0
        self._began: float | None = None
        self._over = False

    def trigger(self, at: float) -> None:
        """A trigger was published."""
        if not self._over:
            self._began = at if self._began is None else self._began
            self.triggers += 1

    def receive(self) -> None:
        """A receive began."""
        if self._counts:
            self.receives += 1

    def said(self, kind: str) -> None:
        """A bridge said something to the others."""
        if self._counts:
            self.words[kind] += 1

    def phase(self, at: float, name: str) -> None:
        """The run entered a phase."""
        if name == "healed" and not self._over:
            self._over = True
            self.seconds = 0.0 if self._began is None else at - self._began

    @property
    def _counts(self) -> bool:
        return self._began is not None and not self._over
