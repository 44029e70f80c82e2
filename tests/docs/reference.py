"""The pages of the reference that are made from the code; ``python -m tests.docs.reference`` writes them."""

from __future__ import annotations

import argparse
import inspect
from collections import Counter
from collections.abc import Iterator

import queuebell
import queuebell.listeners
from queuebell.assembly import assemble
from queuebell.command.main import SUBCOMMANDS
from queuebell.settings import Settings
from tests.readme.test_form import nested, parser_of
from tests.support.processes import ROOT

# Private: `_collector`, `_guards`: all metrics, including those without samples. `_SubParsersAction`, `_actions`:
# argparse lists its options no other way.

COMMON = 2
"""A row that so many commands share stands once."""
FOLDER = ROOT / "docs" / "reference"
SECTIONS = (
    ("For workers", ("Listener", "run", "lifespan", "Message", "batch", "Retry", "Bury", "Replay", "Done")),
    (
        "What a worker can be given",
        ("RetryPolicy", "Pool", "Share", "Ledger", "ClaimCheck", "Failure", "classify", "DepthScaling", "StepScaling"),
    ),
    (
        "For producers",
        ("open_store", "put_in_transaction", "BlockingStore", "Publisher", "BlockingPublisher", "PublishingQueue"),
    ),
    ("The bridge in a process of yours", ("Bridge",)),
)


def of_package(name: str) -> str:
    package = "listeners" if name in queuebell.listeners.__all__ else "bridge"
    return f"queuebell.{package}.{name}"


def python() -> str:
    names = [name for name in dir(queuebell) if name != "__version__"]
    sections = dict(SECTIONS)
    rest = [name for name in names if not any(name in each for each in sections.values())]
    errors = [name for name in rest if _is_error(getattr(queuebell, name))]
    constants = [name for name in rest if not callable(getattr(queuebell, name)) and name not in errors]
    sections["Errors"] = tuple(errors)
    sections["Other names"] = tuple(name for name in rest if name not in errors + constants)
    lines = [
        "# The Python API",
        "",
        "Every public name of `queuebell`, from its docstring. In the checkout read `help(queuebell.Listener)`,",
        "or build the site with `make site`. All are imported as `from queuebell import ...`.",
        "`PULL_ONLY`, given as `bridge=PULL_ONLY`, says that a listener has no bridge and polls. `Outcome` is the type",
        "of what becomes of a message: `Done`, `Retry`, `Bury` or `Replay`.",
        "",
    ]
    assert constants == ["Outcome", "PULL_ONLY"], constants
    for title, each in sections.items():
        lines += [f"## {title}", ""]
        for name in each:
            lines += [f"::: {of_package(name)}", ""]
    lines += ["## What `open_store` gives", "", "::: queuebell.bridge.queues.base.QueueStore", ""]
    lines += ["A store that puts once has this as well:", "", "::: queuebell.bridge.queues.base.PutOnceStore", ""]
    lines += ["## For tests", "", "::: queuebell.testing.Rehearsal", "", "::: queuebell.testing.run_once", ""]
    return "\n".join(lines)


def commands() -> str:
    """Return the page of commands: every subcommand, argument and option, with the words of its help."""
    parsers = {name: nested(parser_of(name)) or {"": parser_of(name)} for name in SUBCOMMANDS}
    rows = Counter(row for each in parsers.values() for parser in each.values() for row in _rows(parser))
    common = [row for row, count in rows.items() if count >= COMMON]
    lines = ["# Commands", "", "What `queuebell --help` says, and the `--help` of each command, on one page.", ""]
    lines += [
        "## Options of many commands",
        "",
        "They are left out below; `--help` of a command shows all it takes.",
        "",
    ]
    lines += ["| | |", "|---|---|", *sorted(common), ""]
    for name, command in SUBCOMMANDS.items():
        lines += [f"## queuebell {name}", "", f"{_sentence(command.summary)}", ""]
        for sub, its in parsers[name].items():
            own = [row for row in _rows(its) if row not in common]
            lines += [f"### queuebell {name} {sub}", ""] if sub else []
            lines += ["| | |", "|---|---|", *own, ""] if own else []
    return "\n".join(lines)


def exported() -> Iterator[tuple[str, list[str], str, str]]:
    """Return name, labels, kind and words of each metric of a bridge that has everything, as Prometheus knows it."""
    everything = Settings(nats=("nats://127.0.0.1:4222",), cluster="shop", keda="127.0.0.1:0")
    metrics = assemble(everything, in_memory=True).service.metrics
    for collector in (*metrics.registry._guards, *metrics.walked):
        for family in collector.collect():
            told = getattr(collector, "_collector", collector)  # what a guarded registry wraps
            labels = getattr(told, "_labelnames", None) or getattr(family, "_labelnames", ())
            total = "_total" if family.type == "counter" else ""
            yield family.name + total, list(labels), family.type, family.documentation


def metrics() -> str:
    lines = [
        "# Metrics",
        "",
        "What `GET /metrics` of a bridge tells, in Prometheus' text format. Some are there only with what they are",
        "about: a cluster, KEDA, queues of its own. At most 2,000 queues are named by a metric; the others add up as",
        "`other`.",
        "What to watch, and what to do about it: [metrics, dashboard and alerts](../how-to/watch.md).",
        "",
        "| metric | kind | what it tells |",
        "|---|---|---|",
    ]
    for name, labels, kind, words in sorted(exported()):
        shown = name + ("{" + ",".join(labels) + "}" if labels else "")
        lines.append(f"| `{shown}` | {kind} | {_cell(words)} |")
    return "\n".join([*lines, ""])


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        shown = action.metavar or (None if action.nargs == 0 else action.dest.upper())
        value = " ".join(shown) if isinstance(shown, tuple) else shown
        if action.option_strings:
            words = ", ".join(f"{option} {value}" if value else option for option in action.option_strings)
        else:
            words = str(value)
        told = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
        yield f"| `{_cell(words)}` | {_cell(told)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, queuebell.QueuebellError) and value is not queuebell.PartlyPut


PAGES = {"python.md": python, "commands.md": commands, "metrics.md": metrics}

if __name__ == "__main__":
    for page, made in PAGES.items():
        (FOLDER / page).write_text(made(), encoding="utf-8")
