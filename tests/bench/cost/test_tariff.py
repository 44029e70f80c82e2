"""What transactions and processes cost."""

from __future__ import annotations

from decimal import Decimal

from bench.cost.tariff import PAPER, Tariff


def test_the_white_papers_sums() -> None:
    """One idle thread is $2.376 a month, and two hundred are $475.20."""
    assert PAPER.month(79_200) == Decimal("2.376")
    assert PAPER.month(79_200 * 200) == Decimal("475.2")


def test_no_rounding() -> None:
    """A third part of a cent counts as such until somebody writes it down."""
    assert Tariff(Decimal("0.0036"), 10_000).cost(1) == Decimal("0.00000036")
    assert Tariff(Decimal("0.1"), 1).cost(3) == Decimal("0.3")


def test_an_hour_of_a_process_has_its_price() -> None:
    """Seven that run all day are 168 hours; a second is its part of one."""
    assert PAPER.run(7 * 86_400.0) == Decimal("0.12") * 168
    assert Tariff(process_hour=Decimal("36")).run(1.0) == Decimal("0.01")
