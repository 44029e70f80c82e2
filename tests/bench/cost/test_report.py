"""Table, chart, picture and JSON."""

from __future__ import annotations

import json
from decimal import Decimal
from xml.etree import ElementTree

import msgspec
import pytest

from bench.cost.cli import to_json
from bench.cost.comparison import Comparison, check_paper, make_row
from bench.cost.day import Burst, Day
from bench.cost.outcome import Outcome
from bench.cost.picture import draw_picture
from bench.cost.report import log_share, seconds, tell, tell_paper, tell_processes
from bench.cost.spread import Percentiles
from bench.cost.tariff import PAPER, Tariff

DAY = Day(43_200.0, 1.5, (Burst(100.0, 1000),))


def outcome(policy: str, misses: int) -> Outcome:
    waits = Percentiles(1000, 1.5, 90.0, 120.0)
    return Outcome(policy, f"the way of {policy} <&>", 4, 1000, 900, misses, misses, 1000, 40_000.0, waits, waits)


def comparison(*misses: int) -> Comparison:
    rows = [make_row(outcome(f"way{index}", each), PAPER, DAY) for index, each in enumerate(misses)]
    return Comparison(4, 1, DAY, PAPER, check_paper(outcome("polling", 79_200)), rows)


def test_a_row_has_a_month_of_such_days() -> None:
    """Half a day counts twice a day; waiting is what found nothing."""
    row = make_row(outcome("polling", 7_100), PAPER, DAY)
    assert row.transactions == 10_000
    assert row.month == Decimal("0.01") * 60
    assert row.waiting_month == Decimal("0.0071") * 60
    assert row.per_listener == 1775
    dear = make_row(outcome("polling", 7_100), Tariff(Decimal("0.5"), 100), DAY)
    assert dear.month == Decimal("0.5") * 100 * 60


def test_the_white_paper_is_agreed_with_or_not() -> None:
    """One receive more is another figure, and the text says so."""
    told = tell_paper(comparison(1))
    assert "79,200" in told[1]
    assert "79,200" in told[2]
    assert "$2.38" in told[2]
    assert told[2].endswith(": the same")
    wrong = msgspec.structs.replace(comparison(1), paper=check_paper(outcome("polling", 79_201)))
    assert tell_paper(wrong)[2].endswith("NOT the same")


def test_the_table_is_aligned() -> None:
    """Every line of a table is as long as its head, and numbers stand in it as they are."""
    lines = tell(comparison(17_000_000, 50, 0))
    table = lines[4:8]
    assert len({len(line) for line in table}) == 1
    assert "17,000,000" in table[1]
    assert "2.0 min" in lines[10]
    assert max(map(len, lines)) <= 100


def test_processes_stand_beside_each_other() -> None:
    """Those that are always there before those from zero, with the hours, their price, and what both bills come to."""
    always = msgspec.structs.replace(outcome("one", 7_100), slots=32, process_s=4 * 43_200.0)
    zero = msgspec.structs.replace(
        outcome("two", 7_000), slots=32, process_s=3600.0, starts=5, counts=100, from_zero=True, first=Percentiles()
    )
    rows = [make_row(each, PAPER, DAY) for each in (zero, always)]
    both = tell_processes(msgspec.structs.replace(comparison(1), rows=rows))
    assert [line.split() for line in both[:6]] == [
        ["always-on", "from", "zero"],
        ["worker", "processes", "one", "two"],
        ["most", "at", "once", "4", "4"],
        ["started", "-", "5"],
        ["hours", "48.0", "1.0"],
        ["$", "a", "month", "$345.60", "$7.20"],
    ]
    assert rows[0].transactions == rows[1].transactions
    assert both[7].split()[-2:] == ["$346.20", "$7.80"]
    assert both[8].split()[-2:] == ["1.50", "s", "-"][-2:]
    assert rows[0].waiting_month == rows[1].waiting_month
    assert tell_processes(comparison(1)) == [], "threads are no processes"


def test_the_chart_is_logarithmic() -> None:
    """Ten times as many are one step more; none has no bar, one has one."""
    bars = [line.count("#") for line in tell(comparison(999_999, 999, 0)) if "<&>" in line]
    assert bars == [44, 22, 0]
    assert log_share(0, 0) == 0.0


@pytest.mark.parametrize(
    ("time", "text"),
    [(0.0098, "9.8 ms"), (0.9994, "999.4 ms"), (1.0, "1.00 s"), (59.994, "59.99 s"), (90.0, "1.5 min")],
)
def test_times(time: float, text: str) -> None:
    """Milliseconds, seconds or minutes, whichever can be read."""
    assert seconds(time) == text


def test_json_keeps_exact_dollars() -> None:
    """Money is text, so that no reader makes a float of it."""
    read = json.loads(to_json(comparison(7_100, 3)))
    assert Decimal(read["rows"][0]["month"]) == Decimal("0.6")
    assert read["rows"][1]["outcome"]["misses"] == 3
    assert read["paper"]["receives"] == 79_200


def test_the_picture_is_one_svg() -> None:
    """Well-formed, a bar for each policy that is as long as its share, no script, nothing from elsewhere."""
    text = draw_picture(comparison(999_999, 999, 0))
    root = ElementTree.fromstring(text)
    name = "{http://www.w3.org/2000/svg}"
    widths = [float(bar.get("width", "nan")) for bar in root.iter(f"{name}rect")]
    assert widths == [300.0, 150.0, 0.0]
    assert not list(root.iter(f"{name}script"))
    assert "href" not in text
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert any("<&>" in (each.text or "") for each in root.iter(f"{name}text"))
