"""The policies side by side: transactions, money and latency. Pure."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

import msgspec

from bench.cost.day import Day
from bench.cost.outcome import Outcome
from bench.cost.tariff import DAYS_A_MONTH, PAPER, Tariff

PAPER_IDLE_S: Final = 22 * 3600.0
PAPER_RECEIVES: Final = 79_200
PAPER_DOLLARS: Final = Decimal("2.38")
"""The white paper's sum: one thread that polls each second through 22 idle hours, and its price for a month."""


class Row(msgspec.Struct, frozen=True):
    """One policy's day and what a month of such days costs.

    ``waiting_month`` is the part for receives that found nothing and for a scaler's counts; ``process_month``, no part
    of ``month``, is what the listeners cost where each is a process of its own. ``per_listener`` are the empty receives
    of one listener while the queue was at rest. Dollars are exact decimals.
    """

    outcome: Outcome
    transactions: int
    month: Decimal
    waiting_month: Decimal
    process_month: Decimal
    per_listener: float


class PaperCheck(msgspec.Struct, frozen=True):
    """The white paper's figures for one polling thread, beside those of the simulated one."""

    paper_receives: int
    receives: int
    paper_dollars: Decimal
    dollars: Decimal

    @property
    def agrees(self) -> bool:
        """Whether they are the same, to the cent."""
        return self.receives == self.paper_receives and self.dollars.quantize(Decimal("0.01")) == self.paper_dollars


class Comparison(msgspec.Struct, frozen=True):
    """All that the command tells."""

    threads: int
    seed: int
    day: Day
    tariff: Tariff
    paper: PaperCheck
    rows: list[Row]


def make_row(outcome: Outcome, tariff: Tariff, day: Day) -> Row:
    """Put a price on an outcome; a day of another length than 24 h counts for its share of the month."""
    days = Decimal(86_400) / Decimal(day.length_s)
    return Row(
        outcome=outcome,
        transactions=outcome.transactions,
        month=tariff.cost(outcome.transactions) * DAYS_A_MONTH * days,
        waiting_month=tariff.cost(outcome.waiting) * DAYS_A_MONTH * days,
        process_month=tariff.run(outcome.process_s) * DAYS_A_MONTH * days,
        per_listener=outcome.misses_at_rest / max(1, outcome.listeners),
    )


def check_paper(one_thread: Outcome) -> PaperCheck:
    """Compare with the white paper what one polling thread did in `PAPER_IDLE_S`, at the white paper's price."""
    return PaperCheck(PAPER_RECEIVES, one_thread.misses, PAPER_DOLLARS, PAPER.month(one_thread.misses))
