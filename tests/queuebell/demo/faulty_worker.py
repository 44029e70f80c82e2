"""A worker with a planted fault: it miscounts the functions of one file. Takes the place of the demo's worker."""

from __future__ import annotations

import sys

import msgspec

from queuebell.demo import worker
from queuebell.demo.analysis import FileFacts, analyse_file


def analyse_wrongly(path: str) -> FileFacts:
    """Analyse a file, but with one function too many where it is argparse.py."""
    facts = analyse_file(path)
    if path.endswith("argparse.py"):
        return msgspec.structs.replace(facts, functions=facts.functions + 1)
    return facts


if __name__ == "__main__":
    worker.analyse_file = analyse_wrongly  # type: ignore[attr-defined]
    sys.exit(worker.main())
