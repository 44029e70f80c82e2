"""Print the script with which bash, zsh or fish completes commands, options, files and queue names.

  bash: eval "$(queuebell completion bash)"  in ~/.bashrc
  zsh:  eval "$(queuebell completion zsh)"   in ~/.zshrc, below compinit
  fish: queuebell completion fish | source   in ~/.config/fish/config.fish

Queue names come from the bridge, if it answers within half a second.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pathlib
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote

WITHIN_S: Final = 0.5
QUEUES_MAX: Final = 100
_FILES: Final = frozenset({"FILE", "DIR", "COMMAND"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``completion``."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["queuebell"], shell=args.shell, use_defaults=False) + "\n")
    return 0


def complete(subcommands: Mapping[str, tuple[str, str]]) -> None:
    """Answer the shell with the words that may come next, and end the process.

    Each subcommand has the name of its module and a summary.
    """
    import argcomplete
    from argcomplete.completers import SuppressCompleter
    from argcomplete.lexers import split_line

    line, point = os.environ.get("COMP_LINE", ""), int(os.environ.get("COMP_POINT", "0"))
    before = split_line(line, len(line.encode()[:point].decode("utf-8", "ignore")))[3]
    parser = argparse.ArgumentParser(prog="queuebell", allow_abbrev=False)
    names = parser.add_subparsers()
    for name, (module, summary) in subcommands.items():
        one = names.add_parser(name, help=summary, allow_abbrev=False)
        if before[1:2] == [name]:
            # Only the typed command is imported, because the user waits for each key.
            importlib.import_module(module).add_arguments(one)
            _equip(one)
    # Arguments without a completer must not complete to file names.
    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=SuppressCompleter())


def _equip(parser: argparse.ArgumentParser) -> None:
    """Set the completer of each argument without choices."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _equip(each)
        elif action.metavar in _FILES:
            action.completer = _files  # type: ignore[attr-defined]
        elif action.metavar == "ACCOUNT/QUEUE" or (action.metavar == "QUEUE" and not action.option_strings):
            action.completer = _queues  # type: ignore[attr-defined]


def _files(prefix: str, **_: object) -> Iterable[str]:
    begin = prefix.rpartition("/")[2]
    folder = prefix.removesuffix(begin)
    with contextlib.suppress(OSError, RuntimeError):  # the latter for the home of a user that there is not
        for path in sorted((pathlib.Path(folder or ".")).expanduser().iterdir()):
            if path.name.startswith(begin) and (begin or not path.name.startswith(".")):
                yield f"{folder}{path.name}{'/' if path.is_dir() else ''}"


def _queues(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the names that the bridge knows, or nothing where it does not answer in time, or nothing is granted."""
    names: dict[str, None] = {}

    def ask() -> None:
        from queuebell.bridge.contract.errors import QueuebellError
        from queuebell.bridge.service.state.answers import Listeners, QueueNames
        from queuebell.command.client import BridgeClient, client_settings

        with contextlib.suppress(QueuebellError, OSError), BridgeClient(client_settings(parsed_args).bridge) as client:
            path = f"/v1/queues?limit={QUEUES_MAX}&prefix={quote(prefix)}"
            names.update(dict.fromkeys((client.read(path, QueueNames)[1] or QueueNames()).queues))
            rows = (client.read("/v1/listeners", Listeners)[1] or Listeners()).listeners
            names.update((each.queue, None) for row in rows for each in row.queues)

    # A thread of its own, which is left where a name server or a bridge takes its time.
    asking = threading.Thread(target=ask, name="names of queues", daemon=True)
    asking.start()
    asking.join(WITHIN_S)
    return [name for name in list(names) if name.isprintable()]
