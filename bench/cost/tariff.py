"""What storage transactions and processes cost. Pure, and in decimals: a bill has no rounding errors of its own."""

from __future__ import annotations

from decimal import Decimal
from typing import Final, NamedTuple

DAYS_A_MONTH: Final = 30
"""The white paper's month."""


PROCESS_HOUR: Final = Decimal("0.12")
"""An hour of compute, in dollars.

Source: the price list of Windows Azure's Community Technology Preview (microsoft.com/windowsazure/pricing, 2009), which
has the white paper's $0.01 for 10,000 storage transactions as well.
"""


class Tariff(NamedTuple):
    """``price`` in dollars for each ``per`` transactions (>= 1), ``process_hour`` for an hour of a worker process."""

    price: Decimal = Decimal("0.01")
    per: int = 10_000
    process_hour: Decimal = PROCESS_HOUR

    def cost(self, transactions: int) -> Decimal:
        """Return the dollars for so many transactions, exactly."""
        return self.price * transactions / self.per

    def month(self, transactions_a_day: int) -> Decimal:
        """Return the dollars for a month of days that are all like this one."""
        return self.cost(transactions_a_day * DAYS_A_MONTH)

    def run(self, process_s: float) -> Decimal:
        """Return the dollars for so many seconds of processes, by the millisecond."""
        return self.process_hour * round(process_s * 1000) / 3_600_000


PAPER: Final = Tariff()
"""The white paper's tariff: one cent for 10,000 transactions."""
