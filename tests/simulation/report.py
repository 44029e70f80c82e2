"""Progress, verdict and story of simulated runs as lines of text, none wider than 80 columns but commands. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Final

from bridge.contract.bounds import bound
from tests.simulation.fault import Fault
from tests.simulation.promise import SLOW_LATENCY_S
from tests.simulation.summary import Failure, Report, Shortest, Summary

WIDTH: Final = 80
STORY_LINES: Final = 60
GAPS: Final = 8
BOUND_S: Final = bound().bound_s
ENOUGH: Final = 16
"""From so many runs on a rule that was never checked is named in the verdict."""


def tell_progress(summary: Summary, seconds: float, share: float) -> str:
    """Say in one line how far it is; ``share`` is from 0 to 1."""
    numbers = summary.numbers
    rate = summary.runs / seconds if seconds > 0 else 0.0
    left = seconds / share - seconds if share > 0 else None
    text = f"{summary.runs:,} runs, {rate:.1f}/s, {numbers.acknowledged:,} messages, lost {numbers.lost:,}"
    if summary.failed:
        text += f", FAILED {summary.failed:,}"
    return text if left is None else f"{text}, {tell_time(left)} left"


def tell_time(seconds: float) -> str:
    """Say a length of time in the unit that fits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def tell_numbers(report: Report) -> list[str]:
    """Lay out what was played and Jepsen's numbers."""
    notes = {
        "attempted": "messages that producers tried to put",
        "acknowledged": "whose put was answered",
        "lost": "acknowledged, and never handled",
        "duplicated": "handled more than once, which is allowed",
        "recovered": "put without an answer, and handled all the same",
        "unexpected": "handled, and never put",
    }
    rates = f"{report.runs_per_s:.1f} runs and {report.messages_per_s:,.0f} messages a second"
    lines = [
        f"  {report.runs:,} runs in {tell_time(report.seconds)}: {rates}",
        f"  {report.virtual_hours:,.1f} virtual hours in {report.steps:,} steps",
        "",
    ]
    lines += [f"  {name:<13}{report.total[name]:>12,}   {note}" for name, note in notes.items()]
    return lines


def tell_costs(report: Report) -> list[str]:
    """Lay out what was measured: receives of empty queues, restarts, and the longest waits."""
    lines = []
    for store, rate in report.receives_per_hour_empty.items():
        if rate is not None:
            most = "0" if store == "own" else "67"
            what = f"receives an hour of an empty queue ({store}, {report.calm_hours[store]:,.1f} h)"
            lines.append(f"  {rate:>8.1f} {what}; promised {most}")
    if report.restarts:
        lines.append(
            f"  {report.restart_receives:>8} receives of a queue at most in {report.restarts:,} bridge restarts"
        )
    if report.gaps:
        lines += ["", f"  {'longest wait for a receive while':<44}{'measured':>12}{'promised':>12}"]
    for gap in report.gaps[:GAPS]:
        bound = "-" if gap.bound_s is None else f"{gap.bound_s:,.1f} s"
        lines.append(f"  {_cut(gap.situation, 43):<44}{gap.worst_s:>10,.1f} s{bound:>12}")
    if len(report.gaps) > GAPS:
        lines.append(f"  and {len(report.gaps) - GAPS} situations in which it was shorter")
    if report.gaps:
        lines += _note(
            "measured is the longest that visible work waited for a receive to begin while one listener could have"
            " begun it; promised is the bound B of the whole plan, whatever the situation"
        )
    if any(gap.bound_s is not None and gap.bound_s > BOUND_S for gap in report.gaps):
        lines += _note(
            f"B is {BOUND_S:,.0f} s; more where the plan has links that may be {SLOW_LATENCY_S / 2:g} s slow each way,"
            " or many listeners: dead-man timers are spread wider then"
        )
    return lines


def tell_coverage(report: Report) -> list[str]:
    """Say which situations were reached how often, and what was never reached: of that nothing is proved."""
    reached = [f"{name} {count:,}" for name, count in report.coverage.items() if count]
    never = [name for name, count in report.coverage.items() if not count]
    checked = [f"{rule} {count:,}" for rule, count in report.checked.items()]
    return [
        line
        for title, words in (("checked", checked), ("reached", reached), ("never", never))
        if words
        for line in _wrapped(title, words)
    ]


def tell_verdict(report: Report, interrupted: str = "") -> str:
    """Say in one line whether all held, and what of it was never checked; ``interrupted`` says after how much."""
    unchecked = [rule for rule, count in report.checked.items() if not count] if report.runs >= ENOUGH else []
    if not report.ok:
        verdict = "FAILED" if report.failed else f"FAILED: ended after {report.runs:,} runs, fewer than were asked for."
    elif interrupted:
        verdict = "these held" if report.runs else "nothing was played to its end"
    elif unchecked:
        verdict = "What was checked held."
    else:
        verdict = "All of it held."
    if interrupted:
        verdict = f"Interrupted {interrupted}; {verdict}"
    return f"{verdict} Not checked: {', '.join(unchecked)}." if unchecked else verdict


def tell_failure(failure: Failure) -> list[str]:
    """Say which run failed, how, and how to play it again."""
    lines = [f"seed {failure.seed} of {failure.plan.name} breaks {failure.rule}"]
    lines += [f"  {line}" for line in failure.violations[:5]]
    if len(failure.violations) > 5:
        lines.append(f"  and {len(failure.violations) - 5} more")
    if failure.broken:
        lines += [f"  {line}" for line in failure.broken.rstrip().splitlines()]
    return [*lines, f"  again:  {failure.command}"]


def tell_shortest(shortest: Shortest) -> list[str]:
    """Lay out the shortest story: the plan, the faults, and the last of what happened."""
    lines = [f"{name} = {value}" for name, value in shortest.differs.items()]
    lines += shortest.faults or ["no fault at all"]
    lines += ["", *shortest.violations[:5], ""]
    story = until(shortest.story, shortest.violations)
    cut, rest = len(story) - STORY_LINES, len(shortest.story) - len(story)
    lines += [f"({cut:,} lines before)"] if cut > 0 else []
    lines += story[-STORY_LINES:]
    lines += [f"({rest:,} lines after)"] if rest > 0 else []
    return [*(f"  {line}".rstrip() for line in lines), "", f"  again:  {shortest.command}"]


def until(story: Sequence[str], violations: Sequence[str]) -> list[str]:
    """Return the lines up to the moment that the first violation names; all of them where it names none."""
    moment = re.search(r"\bat (\d+\.\d+) s\b", violations[0]) if violations else None
    if moment is None:
        return list(story)
    # The violation's time is rounded to the millisecond.
    end = float(moment[1]) + 0.0005
    return [line for line in story if float(line.split(maxsplit=1)[0]) <= end]


def tell_fault(fault: Fault) -> str:
    """Say one fault in one line."""
    value = f" ({fault.value:g})" if fault.value else ""
    return f"at {fault.at_s:.3f} s {fault.kind}{value} of {fault.target} for {fault.length_s:.3f} s"


def _note(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _wrapped(title: str, words: Sequence[str]) -> list[str]:
    return textwrap.wrap(
        ", ".join(words), WIDTH, initial_indent=f"  {title:<9}", subsequent_indent=" " * 11, break_long_words=False
    )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
