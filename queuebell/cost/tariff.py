"""What storage transactions cost. Pure, and in decimals: a bill has no rounding errors of its own."""

from __future__ import annotations

from decimal import Decimal
from typing import Final, NamedTuple

DAYS_A_MONTH: Final = 30
"""The white paper's month."""


class Tariff(NamedTuple):
    """``price`` in dollars for each ``per`` transactions (>= 1)."""

    price: Decimal = Decimal("0.01")
    per: int = 10_000

    def cost(self, transactions: int) -> Decimal:
        """Return the dollars for so many transactions, exactly."""
        return self.price * transactions / self.per

    def month(self, transactions_a_day: int) -> Decimal:
        """Return the dollars for a month of days that are all like this one."""
        return self.cost(transactions_a_day * DAYS_A_MONTH)


PAPER: Final = Tariff()
"""The white paper's tariff: one cent for 10,000 transactions."""
