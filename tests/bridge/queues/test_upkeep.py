"""When the file of the embedded store gives space back, and when it leaves off."""

from __future__ import annotations

from typing import cast

import pytest

from queuebell.bridge.queues.embedded import committer
from queuebell.bridge.queues.embedded.committer import Upkeep
from queuebell.bridge.queues.embedded.state import State


def kept(file: File) -> Upkeep:
    return Upkeep(cast(State, file))


class File:
    """A state of so many pages, of which some are free; the database behind it only answers."""

    class Keys:
        """Puts under keys; the next one is forgotten at ``due``."""

        due: float | None = None

    def __init__(self, pages: int, free: int) -> None:
        self.pages, self.free = pages, free
        self.deleted_queue_ids: list[int] = []
        self.freed = self.log_pages = 0
        self.now = 100.0
        self.keys = self.Keys()
        self.forgot: list[int] = []
        self.checkpoints: list[str] = []
        self.connection = self

    def execute(self, sql: str, _: tuple[object, ...] = ()) -> File:
        self.asked = sql
        if "checkpoint" in sql:
            self.checkpoints.append(sql.partition("(")[2].rstrip(")"))
        return self

    def fetchone(self) -> tuple[int]:
        return ({"PRAGMA freelist_count": self.free, "PRAGMA page_count": self.pages}[self.asked],)

    def fetchall(self) -> list[object]:
        return []

    def executescript(self, sql: str) -> None:
        """Give so many pages back."""
        count = min(self.free, int(sql.partition("(")[2].rstrip(")")))
        self.free -= count
        self.pages -= count

    def forget_keys(self, most: int) -> None:
        """Forget so many at once."""
        self.forgot.append(most)
        self.keys.due = None


@pytest.mark.parametrize("free", [1, committer.GIVEN_BACK_PAGES, committer.GIVEN_BACK_PAGES + 1, 5000])
def test_on_a_full_disk_all_that_is_free_goes_back_at_once(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what was freed before, and what one row freed; afterwards the file keeps its free pages again."""
    monkeypatch.setattr(committer, "limit_log", lambda connection, tight: None)
    file = File(100_000, free)
    upkeep = kept(file)
    upkeep.tighten(True)
    steps = 0
    while upkeep.untidy:
        upkeep.tidy()
        steps += 1
        assert steps < 1000
    assert file.free == 0 and steps == -(-free // committer.GIVEN_BACK_PAGES)
    assert set(file.checkpoints) == {"RESTART"}
    file.free = 3
    file.freed = 1
    assert upkeep.untidy
    upkeep.tighten(False)
    assert not upkeep.untidy
