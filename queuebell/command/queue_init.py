"""``queue init``: create or migrate the tables of a store that needs them."""

from __future__ import annotations

import argparse
import asyncio

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.command.client import client_settings, print_json

SCHEMES = ("postgres", "postgresql", "pgmq")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``queue init``."""
    parser.add_argument(
        "url",
        metavar="STORE_URL",
        nargs="?",
        help="postgres://USER@HOST/DATABASE, or pgmq:// for PGMQ's queues (default: QUEUEBELL_STORE, which hides a "
        "password from other users)",
    )
    parser.add_argument(
        "--notify",
        action=argparse.BooleanOptionalAction,
        help="make each put, also a plain INSERT, a trigger for 'serve --postgres' (default: no change)",
    )


def run(args: argparse.Namespace) -> int:
    """Create what is missing, print it, and return 0; a repetition does nothing."""
    settings = client_settings(args)
    url = args.url or settings.store
    scheme = url.partition(":")[0].lower()
    if scheme not in SCHEMES:
        raise ConfigurationError(
            "store: only a database needs tables, and this is not the address of one: postgres://USER@HOST/DATABASE, "
            "without a driver's name (postgresql+asyncpg)"
        )
    if scheme == "pgmq":
        from queuebell.bridge.queues.postgres.pgmq import init
    else:
        from queuebell.bridge.queues.postgres.schema import init

    done = asyncio.run(init(url, notify=args.notify, prefix=settings.prefix))
    if args.json:
        print_json({"done": done})
    else:
        for line in done or ["nothing to do: the tables exist and have this version"]:
            print(line)
    return 0
