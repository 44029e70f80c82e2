"""``python -m tests.model [--all]``: search the model, and print what held, what broke, and how many states it took."""

from __future__ import annotations

import pathlib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from tests.model.configurations import LARGE, SMALL, Run
from tests.model.search import SearchBroken, ToolMissing, Verdict, need_tools, search

SIDE_BY_SIDE = 2


def main(arguments: list[str]) -> int:
    """Search; return 0 only if every world holds and every wrong turn in it fails."""
    try:
        need_tools()
    except ToolMissing as error:
        sys.stderr.write(f"{error}\n")
        return 1
    runs = SMALL + (LARGE if "--all" in arguments else ())
    jobs = [(run, mutant) for run in runs for mutant in (None, *run.mutants)]
    good = True
    sys.stdout.write("| world | switches | wrong turn | states | verdict | seconds |\n|---|---|---|---|---|---|\n")
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for (run, mutant), verdict in zip(jobs, pool.map(lambda job: _search(*job), jobs), strict=True):
            as_wanted = not isinstance(verdict, str) and verdict.holds is (mutant is None)
            good = good and as_wanted
            sys.stdout.write(_row(run, mutant, verdict, as_wanted))
            sys.stdout.flush()
    return 0 if good else 1


def _search(run: Run, mutant: str | None) -> Verdict | str:
    with tempfile.TemporaryDirectory(prefix="wake-") as folder:
        try:
            return search(run.model, run.flags(mutant), pathlib.Path(folder), optimise=0 if run in SMALL else 2)
        except SearchBroken as error:
            return str(error).splitlines()[0]


def _row(run: Run, mutant: str | None, verdict: Verdict | str, as_wanted: bool) -> str:
    head = f"| {run.name} | `{run.switches}` | {mutant or ''} |"
    mark = "" if as_wanted else " **NOT AS IT SHOULD BE**"
    if isinstance(verdict, str):
        return f"{head} | {verdict}{mark} | |\n"
    said = "holds" if verdict.holds else f"fails: {verdict.broke}"
    return f"{head} {verdict.states:,} | {said}{mark} | {verdict.seconds:.1f} |\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
