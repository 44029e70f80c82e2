"""The pages say of the default retry policy what it is: its numbers, its pauses, and how long they last."""

from __future__ import annotations

import re

from bridge.contract.settings import parse_toml
from listeners import RetryPolicy
from queuebell.command.listen_settings import ListenSettings
from tests.support.processes import ROOT

DEFAULT = RetryPolicy()
PAGE = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")


def test_the_page_says_how_long_the_default_lasts() -> None:
    """Five attempts and the pauses between them, one by one and together; that is minutes."""
    *pauses, last = (f"{DEFAULT.middle(attempt):g}" for attempt in range(1, DEFAULT.attempts))
    assert "By default five attempts are over after 129.5 s, two minutes:" in PAGE
    assert (DEFAULT.attempts, round(DEFAULT.lasts_s(), 1), round(DEFAULT.lasts_s() / 60)) == (5, 129.5, 2)
    assert f"they come {', '.join(pauses)} and {last} s after each other" in PAGE
    tour = " ".join((ROOT / "docs" / "how-to" / "tour.md").read_text(encoding="utf-8").split())
    assert "after 0.5, 3, 18 and 108 s. After `max_attempts` (5), some two minutes," in tour


def test_the_table_names_every_number_with_its_default() -> None:
    """And the option of the command, which has the same default."""
    rows = re.findall(r"^\| `(\w+)` \| `--([\w-]+)` \| (\S+) \|", PAGE, re.MULTILINE)
    assert {name: default for name, _, default in rows} == {
        name: "none" if (value := getattr(DEFAULT, name)) is None else f"{value:g}"
        for name in RetryPolicy.__struct_fields__
    }
    for name, option, _ in rows:
        assert getattr(ListenSettings(), option.replace("-", "_")) == (getattr(DEFAULT, name) or ())


def test_the_configuration_shows_the_defaults() -> None:
    """But for transient failures, of which it says that there is none."""
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    shown = re.search(r"```toml\n(\[listener\]\nmax_attempts.*?)```", page, re.DOTALL)
    assert shown is not None
    table = parse_toml(shown[1], "configuration.md")["listener"]
    assert table.pop("retry_transient") == ["attempts=20", "ceiling=900"]
    assert table == {name: getattr(ListenSettings(), name) for name in table}
    assert len(table) == 5
