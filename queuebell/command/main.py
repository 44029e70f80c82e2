"""The command line: its subcommands, each imported when it is called, and the exit codes of their errors."""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib
import os
import re
import signal
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn

import queuebell.bridge
from queuebell.bridge.contract import errors

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 69
OWNED: Final = 73
CONFIGURATION: Final = 78
INTERRUPTED: Final = 130


class Subcommand(NamedTuple):
    """A module with ``add_arguments(parser)`` and ``run(args) -> int``, its summary and examples of its use."""

    module: str
    summary: str
    examples: tuple[str, ...]
    """Command lines without ``queuebell`` and the name; the help of the command ends with them."""
    nested: bool = False
    """Whether it has subcommands of its own."""
    usage: str | None = None
    """The operands, if there are too many options for one line; default is what argparse makes of all."""


SUBCOMMANDS: Final[dict[str, Subcommand]] = {
    "serve": Subcommand(
        "queuebell.command.serve",
        "run the bridge and its queue service",
        ("--data ./queuebell-data", "--store postgres://jobs@db/jobs --nats nats://broker:4222"),
        usage="[options]",
    ),
    "demo": Subcommand(
        "queuebell.demo.cli", "run real work in real processes, and show what it costs", ("", "--workers 8 --json")
    ),
    "publish": Subcommand(
        "queuebell.command.publish",
        "tell the bridge that work was put on a queue",
        ("billing/orders", "billing/orders --size 20 --bridge https://bridge:8470"),
    ),
    "listen": Subcommand(
        "queuebell.command.listen",
        "handle a queue's messages with a Python function or any command",
        ("http://127.0.0.1:8470 billing/orders orders:handle", "http://127.0.0.1:8470 billing/orders --exec ./handle"),
        usage="STORE QUEUE (MODULE:FUNCTION | --exec CMD) [options]",
    ),
    "scale": Subcommand(
        "queuebell.command.scale",
        "start workers when work comes, and end them when there is none",
        (
            "http://127.0.0.1:8470 billing/orders --max 8 -- python worker.py",
            "--config scale.toml",
            "http://127.0.0.1:8470 billing/orders --actuator exec -- docker service scale orders={}",
            "http://127.0.0.1:8470 billing/orders --actuator systemd --unit queuebell-worker@",
        ),
    ),
    "queue": Subcommand(
        "queuebell.command.queue",
        "put, get, peek at and manage queues",
        ("put billing/orders 'order 20'", "replay billing/orders-poison --dry-run"),
        nested=True,
    ),
    "key": Subcommand(
        "queuebell.command.key",
        "create, list and revoke the keys of a bridge with --auth",
        ("create shop --allow 'put=billing/*' --days 90", "revoke shop"),
        nested=True,
    ),
    "status": Subcommand(
        "queuebell.command.status",
        "show the state of the bridge, its listeners and its queues",
        ("billing/orders", "--watch 5"),
    ),
    "top": Subcommand(
        "queuebell.command.top", "show the queues live, those with problems first", ("", "billing --sort waiting")
    ),
    "explain": Subcommand(
        "queuebell.command.explain",
        "show which listeners a trigger would wake now, and why not the others",
        ("billing/orders", "billing/orders --json"),
    ),
    "drain": Subcommand(
        "queuebell.command.drain",
        "ask workers to stop once their handlers end",
        ("shop-worker", "6f1c2a9e0b7d4c53a1e8f0d2b4c6e8a0"),
    ),
    "check": Subcommand(
        "queuebell.command.check",
        "check a configuration, and the bridge if one is running",
        ("--config bridge.toml", "--config bridge.toml --live"),
    ),
    "completion": Subcommand("queuebell.command.completion", "set up completion in bash, zsh or fish", ("bash", "zsh")),
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors name the action or option that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Exit with the usage and the message."""
        given, known = "", ""
        if (wrong := _INVALID(message)) is not None:
            given, known = wrong[1] or wrong[3], wrong[2] or " ".join(_OPTIONS(self.format_help()))
        near = difflib.get_close_matches(given, _WORDS(known), n=1)
        super().error(f"{message}; did you mean {near[0]}?" if near else message)


_INVALID: Final = re.compile(
    r"invalid choice: '([^']*)' \(choose from (.*)\)|unrecognized arguments: (--[\w-]+)"
).search
_OPTIONS: Final = re.compile(r"--\w[\w-]*").findall
_WORDS: Final = re.compile(r"-{0,2}\w[\w-]*").findall


class ActionParser(Parser):
    """The parser of one action: options may stand between operands, and an error shows this action's usage."""

    # Whether `parse_known_intermixed_args` is at work: it calls `parse_known_args` itself.
    _intermixed = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; unlike its parent, leave nothing unknown."""
        if self._intermixed:
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            found, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def show_examples(parser: argparse.ArgumentParser, name: str, examples: Sequence[str]) -> None:
    """End the help of a command with examples, and give each option one line where it can be."""
    parser.formatter_class = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=32)
    parser.epilog = "\n".join(("examples:", *(f"  queuebell {name} {each}".rstrip() for each in examples)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 ok, 1 failed, 2 usage, 69, 73 or 78."""
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # The kernel drops a signal that the first process of a container has no handler for. Commands that stop in
        # order set their own handler later.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    if "_ARGCOMPLETE" in os.environ:
        from queuebell.command.completion import complete

        complete({name: (each.module, each.summary) for name, each in SUBCOMMANDS.items()})
    words = list(sys.argv[1:] if argv is None else argv)
    # A body may be any bytes; a name or an option may not.
    for place, word in enumerate([] if words[:2] == ["queue", "put"] else words, 1):
        if any("\udc80" <= character <= "\udcff" for character in word):
            print(f"queuebell: argument {place} is not UTF-8, and nothing was done: {word!a}", file=sys.stderr)
            return USAGE
    if not words or words[0] in {"-h", "--help", "help"}:
        print(_overview())
        return OK if words else USAGE
    if words[0] in {"-V", "--version"}:
        print(f"queuebell {queuebell.bridge.__version__}")
        return OK
    name, rest = words[0], words[1:]
    subcommand = SUBCOMMANDS.get(name)
    if subcommand is None:
        actions = {action: f"{nest} {action}" for nest in ("key", "queue") for action in _actions(nest)}
        near = difflib.get_close_matches(name, [*SUBCOMMANDS, *actions], n=1)
        meant = f"; did you mean '{actions.get(near[0], near[0])}'?" if near else ""
        print(f"queuebell: no such command: {name!a}{meant}\n\n{_overview()}", file=sys.stderr)
        return USAGE
    if not _output(name):
        print(f"queuebell {name}: standard output is closed, and nothing was done", file=sys.stderr)
        return FAILED
    try:
        return _run(name, subcommand, rest)
    except KeyboardInterrupt:
        # While modules are still loading; a command that runs has its own way to stop.
        return 128 + signal.SIGINT


_UNSEEN: Final = frozenset({"serve", "listen", "scale"})
"""What runs without an output: its answer is its work."""


def _output(name: str) -> bool:
    """Put the null device where a stream is closed; return whether the command may run without what it would print."""
    told = sys.stdout is not None or name in _UNSEEN
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:
            # Its number would be the next file's that is opened, and that file's content the next traceback.
            setattr(sys, stream, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    return told


def _run(name: str, subcommand: Subcommand, rest: list[str]) -> int:
    module = importlib.import_module(subcommand.module)
    parser = _parser(name, subcommand, module)
    if subcommand.nested and not rest:
        parser.print_help(sys.stderr)
        return USAGE
    # Intermixed: `listen STORE QUEUE --bridge URL MODULE:FUNCTION` has an option between its operands.
    args = parser.parse_args(rest) if subcommand.nested else parser.parse_intermixed_args(rest)
    try:
        _check_addresses(args)
        code: int = module.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has gone: exit without a second error when Python flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (errors.QueuebellError, OSError) as error:
        return _told(name, error)
    return code


def _parser(name: str, subcommand: Subcommand, module: Any) -> Parser:
    parser = Parser(
        prog=f"queuebell {name}",
        description=_description(module.__doc__ or ""),
        usage=None if subcommand.usage is None else f"queuebell {name} {subcommand.usage}",
        allow_abbrev=False,
    )
    show_examples(parser, name, subcommand.examples)
    module.add_arguments(parser)
    return parser


def _actions(name: str) -> list[str]:
    """Return the actions of a nested command, as its usage lists them."""
    module = importlib.import_module(SUBCOMMANDS[name].module)
    help_ = _parser(name, SUBCOMMANDS[name], module).format_help()
    return re.findall(r"^    ([a-z]+)  ", help_, re.MULTILINE)


def _description(text: str) -> str:
    """Return a module's docstring as a terminal shows it: without markup, 79 characters wide."""
    return "\n\n".join(
        part if part.startswith(" ") else textwrap.fill(part, 79) for part in text.replace("``", "").split("\n\n")
    )


_BARE_ADDRESS: Final = re.compile(r"(?:[^@/\s]*@)?((\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5})(?:/\S*)?").fullmatch


def _check_addresses(args: argparse.Namespace) -> None:
    """Reject HOST:PORT where an address is expected, or as first operand; a queue never has that form."""
    for name in ("address", "store", "bridge", "url", "queue"):
        given = getattr(args, name, None)
        if isinstance(given, str) and (bare := _BARE_ADDRESS(given)) is not None:
            from queuebell.bridge.queues import WITHOUT_HOST

            if bare[2] not in WITHOUT_HOST:
                raise errors.BadInput(
                    "bad_parameter", f"{bare[1]}: an address begins with its scheme; did you mean http://{bare[1]}?"
                )


_CODES: Final[list[tuple[type[Exception], int]]] = [
    (errors.BadInput, USAGE),
    (errors.ConfigurationError, CONFIGURATION),
    (errors.StoreOwned, OWNED),
    (errors.StoreUnavailable, UNREACHABLE),
    (errors.BusUnavailable, UNREACHABLE),
    (errors.ChannelLost, UNREACHABLE),
]
_NOT_ALLOWED: Final = (401, 403)


def _told(name: str, error: Exception) -> int:
    """Print the error on one line, and return its exit code."""
    text = " ".join(errors.said(error).split()) or type(error).__name__
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    print(f"queuebell {name}: {text}{notes}", file=sys.stderr)
    if getattr(error, "status", None) in _NOT_ALLOWED:
        return FAILED  # a bridge that refuses a key was reached
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def _overview() -> str:
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name:<{width}}  {subcommand.summary}" for name, subcommand in SUBCOMMANDS.items()]
    return "\n".join(
        [
            "usage: queuebell COMMAND [options]",
            "",
            "Wakes workers within milliseconds when work is put on a queue, and polls nothing meanwhile.",
            "",
            *lines,
            "",
            "'queuebell COMMAND --help' shows the options of a command, with examples. A bridge with --auth needs a",
            "key in QUEUEBELL_API_KEY, or in the file that QUEUEBELL_API_KEY_FILE names.",
            "Exit codes: 0 ok, 1 failed or not allowed, 2 usage, 69 unreachable, 73 data file owned by another",
            "process, 78 configuration.",
        ]
    )
