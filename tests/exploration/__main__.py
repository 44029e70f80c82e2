"""``python -m tests.exploration [SEEDS] [FIRST]``: random stories, more of them than a test run tells."""

from __future__ import annotations

import sys
import time

from tests.exploration.explore import walks
from tests.exploration.plan import WILD


def main(arguments: list[str]) -> None:
    """Tell the stories; a failure ends with the shortest story found."""
    if arguments and not arguments[0].isdecimal():
        sys.exit(__doc__)
    seeds = int(arguments[0]) if arguments else 2000
    first = int(arguments[1]) if len(arguments) > 1 else 0
    for plan in WILD:
        began = time.monotonic()
        told = walks(plan, range(first, first + seeds))
        sys.stdout.write(
            f"{plan.name}: {told.stories} stories hold, {told.steps} steps, {time.monotonic() - began:.1f} s\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
