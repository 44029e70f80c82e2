"""When the file of the embedded store gives space back, and when it leaves off."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, cast

import pytest

from bridge.queues.base import NewMessage
from bridge.queues.embedded import upkeep
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.file import open_file
from bridge.queues.embedded.state import State
from bridge.queues.embedded.upkeep import Upkeep

FEW = upkeep._FREE_PAGES
ROWS = upkeep._FREED_ROWS


class File:
    """A state of so many pages, of which some are free; the database behind it only answers."""

    class Keys:
        """Puts under keys; the next one is forgotten at ``due``."""

        due: float | None = None

    def __init__(self, pages: int, free: int) -> None:
        self.pages, self.free = pages, free
        self.garbage: list[int] = []
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


def kept(file: File) -> Upkeep:
    return Upkeep(cast(State, file))


@pytest.mark.parametrize(
    ("pages", "free", "left"),
    [
        (10 * FEW, 10 * FEW // 2 - 1, 10 * FEW // 2 - 1),
        (10 * FEW, 10 * FEW // 2, None),
        (10 * FEW, 9 * FEW, None),
        (2 * FEW - 2, FEW - 1, FEW - 1),
        (2 * FEW, FEW, None),
    ],
    ids=["less than half is free", "half is free", "most is free", "too little to bother", "just enough"],
)
def test_space_goes_back_from_half_free_down_to_an_eighth(pages: int, free: int, left: int | None) -> None:
    """A file in steady use keeps its free pages; one that has emptied shrinks, a bounded step at a time."""
    file = File(pages, free)
    upkeep_ = kept(file)
    assert not upkeep_.untidy
    file.freed = ROWS - 1
    assert not upkeep_.untidy
    file.freed = ROWS
    steps = 0
    while upkeep_.untidy:
        before = file.free
        upkeep_.tidy()
        assert before - file.free <= upkeep._VACUUM_PAGES
        steps += 1
        assert steps < 10_000
    if left is not None:
        assert file.free == left and file.checkpoints == []
    else:
        # The pages in use stay; of the file an eighth is free, or too little to bother.
        assert file.free < FEW or file.free * 8 < file.pages
        assert file.free + upkeep._VACUUM_PAGES >= min(FEW, file.pages / 8)
        assert file.checkpoints[-1] == "TRUNCATE"
    assert not upkeep_.untidy


def test_a_long_log_is_shortened_in_passing() -> None:
    """It is brought into the file without waiting for readers, and counts from nothing again."""
    file = File(10, 0)
    file.log_pages = upkeep._LOG_PAGES
    upkeep_ = kept(file)
    assert upkeep_.untidy
    upkeep_.tidy()
    assert (file.checkpoints, file.log_pages, upkeep_.untidy) == (["PASSIVE"], 0, False)


@pytest.mark.parametrize(("rows", "size"), [(1, 0), (1, 60_000), (32, 0), (32, 60_000), (1024, 100)])
def test_the_length_of_the_log_is_guessed_from_what_was_put(tmp_path: Path, rows: int, size: int) -> None:
    """Its pages are not counted at each commit; the guess is neither half of them nor three times as many."""
    connection, lock = open_file(tmp_path / "queue.db")
    engine = Engine(connection, clock=lambda: 0.0, wall=lambda: 1.0, receipts=lambda: 2, boot="a" * 32)
    upkeep_, commits = Upkeep(engine.state), 0
    headers = {"x": "y" * min(size, 1000)}
    while not upkeep_.untidy:
        for first in range(0, rows, 32):
            engine.put(
                "a/b", [NewMessage(b"x" * (size - min(size, 1000)), headers=headers)] * min(32, rows - first), None
            )
        engine.state.commit()
        commits += 1
    _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    assert upkeep._LOG_PAGES // 3 <= pages <= 2 * max(upkeep._LOG_PAGES, pages // commits), commits
    upkeep_.tidy()
    assert not upkeep_.untidy
    connection.close()
    lock.release()


@pytest.mark.parametrize(("due", "forgets"), [(None, False), (100.1, False), (100.0, True), (50.0, True)])
def test_keys_are_forgotten_when_they_are_due(due: float | None, forgets: bool) -> None:
    """By the time of the last commit, and so many at once."""
    file = File(10, 0)
    file.keys.due = due
    upkeep_ = kept(file)
    assert upkeep_.untidy is forgets
    if forgets:
        upkeep_.tidy()
        assert file.forgot == [upkeep._KEYS] and not upkeep_.untidy


@pytest.mark.parametrize("free", [1, upkeep._GIVEN_BACK_PAGES, upkeep._GIVEN_BACK_PAGES + 1, 5000])
def test_on_a_full_disk_all_that_is_free_goes_back_at_once(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what was freed before, and what one row freed; afterwards the file keeps its free pages again."""
    monkeypatch.setattr(upkeep, "limit_log", lambda connection, tight: None)
    file = File(100_000, free)
    upkeep_ = kept(file)
    upkeep_.tighten(True)
    steps = 0
    while upkeep_.untidy:
        upkeep_.tidy()
        steps += 1
        assert steps < 1000
    assert file.free == 0 and steps == -(-free // upkeep._GIVEN_BACK_PAGES)
    assert set(file.checkpoints) == {"RESTART"}
    file.free = 3
    file.freed = 1
    assert upkeep_.untidy
    upkeep_.tighten(False)
    assert not upkeep_.untidy


def test_garbage_is_removed_in_bulk_until_none_is_left() -> None:
    """A queue of 1,200 rows that was cleared takes three steps; what other queues have stays."""
    rows = sqlite3.connect(":memory:")
    rows.execute("CREATE TABLE messages (seq INTEGER PRIMARY KEY, q INTEGER)")
    rows.executemany("INSERT INTO messages (q) VALUES (?)", [(1,)] * 1200 + [(2,)] * 7)
    removed: list[int] = []
    file: Any = File(10, 0)
    file.execute, file.garbage, file.removed = rows.execute, [1], removed.append
    upkeep_ = kept(file)
    while file.garbage:
        assert upkeep_.untidy
        upkeep_.tidy()
    assert removed == [500, 500, 200] and file.freed == 1200
    assert rows.execute("SELECT count(*), min(q) FROM messages").fetchone() == (7, 2)
    rows.close()
