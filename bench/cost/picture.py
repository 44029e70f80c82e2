"""The comparison as an SVG picture that stands alone: no scripts, no fonts, readable on light and on dark. Pure."""

from __future__ import annotations

from html import escape
from typing import Final

from bench.cost.comparison import Comparison
from bench.cost.report import dollars, log_share, seconds

WIDTH: Final = 860
LEFT: Final = 270
BARS: Final = 300
TOP: Final = 76
STEP: Final = 34
BAR: Final = 20

# Colours in the file itself, chosen by the reader's scheme; an ink that reads on both where a viewer knows none.
STYLE: Final = """
  text { font: 14px sans-serif; fill: #24292f }
  .head { font-weight: bold; font-size: 16px }
  .note { fill: #57606a; font-size: 12px }
  .pull { fill: #bc4c00 } .push { fill: #1a7f37 } .grid { stroke: #8c959f; stroke-opacity: .35 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .note { fill: #9198a1 } .pull { fill: #f0883e } .push { fill: #3fb950 }
  }
"""


def draw_picture(comparison: Comparison) -> str:
    """Draw a day's empty receives and counts as bars on a logarithmic scale, with each policy's month and wait."""
    rows = comparison.rows
    most = max(row.outcome.waiting for row in rows)
    bottom = TOP + STEP * len(rows)
    title = f"Empty receives and counts a day, {comparison.threads} dequeue threads"
    note = "logarithmic scale; beside it what waiting costs a month, and the first message's median wait after a rest"
    view = f"0 0 {WIDTH} {bottom + 44}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f"<style>{STYLE}</style>",
        f'<text class="head" x="16" y="28">{escape(title)}</text>',
        f'<text class="note" x="16" y="50">{note}</text>',
    ]
    power = 1
    while power <= most:
        x = LEFT + BARS * log_share(power, most)
        lines.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}"/>')
        lines.append(f'<text class="note" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{_short(power)}</text>')
        power *= 10 if most < 10_000 else 100
    for index, row in enumerate(rows):
        one, y = row.outcome, TOP + STEP * index
        kind = "push" if one.policy.startswith(("push", "own", "zero", "rough")) else "pull"
        width = max(1.0 if one.waiting else 0.0, BARS * log_share(one.waiting, most))
        first = seconds(one.first.p50_s) if one.first.count else "-"
        lines += [
            f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(one.title)}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>',
            f'<text x="{LEFT + BARS + 12}" y="{y + 15}">{one.waiting:,}</text>',
            f'<text class="note" x="{WIDTH - 104}" y="{y + 15}" text-anchor="end">{dollars(row.waiting_month)}</text>',
            f'<text class="note" x="{WIDTH - 16}" y="{y + 15}" text-anchor="end">{first}</text>',
        ]
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def _short(number: int) -> str:
    """Write a power of ten in few characters."""
    for unit, name in ((1_000_000, "M"), (1_000, "k")):
        if number >= unit:
            return f"{number // unit}{name}"
    return str(number)
