"""What a process that a test starts runs first, as its ``sitecustomize``: in a survey, it notes what it reaches.

It writes each function at once, because many of these processes are killed.
"""

from __future__ import annotations

import os
import pathlib

VARIABLE = "MUTANTS_REACHED"
"""The file to write to."""


def note(file: str) -> None:
    """Write the name of each function to ``file`` when this process first reaches it."""
    from mutmut.mutation import trampoline

    known: set[str] = set()

    def hit(name: str, caller: object = None) -> None:
        if name not in known:
            known.add(name)
            with pathlib.Path(file).open("a", encoding="utf-8") as reached:
                reached.write(f"{name}\n")

    trampoline.get_mutant_under_test = lambda: "stats"
    trampoline.record_trampoline_hit = hit


if VARIABLE in os.environ:
    note(os.environ[VARIABLE])
