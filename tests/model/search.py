"""Searches every state of a model in docs/model under one set of switches: spin writes a verifier, gcc compiles it."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import time

import msgspec

from tests.support.command import ROOT

MODELS = ROOT / "docs" / "model"
NEEDED = ("spin", "gcc")
DEPTH = 100_000
STATES_LEAST = 1000
"""A world that holds has at least as many; with fewer the search did not get anywhere."""


class ToolMissing(RuntimeError):
    """A program that the search needs is not installed."""


class SearchBroken(RuntimeError):
    """The search did not come to an end: no verdict."""


class Verdict(msgspec.Struct, frozen=True):
    """What a search found: whether all states hold, how many there are, and what broke first where they do not."""

    holds: bool
    states: int
    broke: str
    seconds: float


def need_tools() -> None:
    """Raise `ToolMissing` with what to install."""
    missing = [tool for tool in NEEDED if shutil.which(tool) is None]
    if missing:
        raise ToolMissing(
            f"the model cannot be searched without {' and '.join(missing)}: "
            "on Debian and Ubuntu, apt-get install spin gcc libc6-dev"
        )


def search(
    model: str,
    flags: tuple[str, ...],
    folder: pathlib.Path,
    *,
    optimise: int = 2,
    memory_mb: int = 4000,
    within_s: float = 3000.0,
) -> Verdict:
    """Search all states of ``model`` reachable under ``flags``, in ``folder``.

    Raises `ToolMissing`, or `SearchBroken` when memory, depth or time do not suffice: a search that was cut short
    is no verdict.
    """
    need_tools()
    _run(("spin", "-a", *flags, str(MODELS / model)), folder, 30.0)
    limits = ("-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={memory_mb}", "-DVECTORSZ=2048")
    _run(("gcc", f"-O{optimise}", "-w", *limits, "-o", "pan", "pan.c"), folder, 120.0)
    began = time.monotonic()
    said = _run((str(folder / "pan"), "-E", f"-m{DEPTH}"), folder, within_s)
    seconds = time.monotonic() - began
    states = re.search(r"^\s*(\S+) states, stored", said, re.MULTILINE)
    errors = re.search(r"errors: (\d+)", said)
    if states is None or errors is None:
        raise SearchBroken(f"the verifier of {' '.join(flags)} says neither states nor errors:\n{said[-1000:]}")
    broke = re.search(r"^pan:1: (.*?) \(at depth", said, re.MULTILINE)
    if errors[1] == "0" and ("max search depth too small" in said or "Search not completed" in said):
        raise SearchBroken(f"the search of {' '.join(flags)} was cut short:\n{said[-1000:]}")
    if errors[1] == "0" and float(states[1]) < STATES_LEAST:
        raise SearchBroken(f"the search of {' '.join(flags)} saw {states[1]} states: too few to prove anything")
    return Verdict(errors[1] == "0", int(float(states[1])), broke[1] if broke else "", seconds)


def _run(words: tuple[str, ...], folder: pathlib.Path, within_s: float) -> str:
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=within_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise SearchBroken(f"{words[0]} did not end within {within_s:.0f} s") from error
    said = done.stdout + done.stderr
    if done.returncode != 0 and not (words[0].endswith("pan") and "errors:" in said):
        raise SearchBroken(f"{' '.join(words)} failed with {done.returncode}:\n{said[-2000:]}")
    return said


def wrong_turns(text: str) -> set[str]:
    """Return the names of the wrong turns that a model can be told to take."""
    switches = [line for line in text.splitlines() if line.startswith(("#if", "#elif"))]
    return set(re.findall(r"\b([VW]\d+[A-Z]?)\b", "\n".join(switches)))
