"""``queue init``: make the tables of a store that needs some, or migrate them."""

from __future__ import annotations

import argparse
import asyncio

from bridge.contract.errors import ConfigurationError
from queuebell.command.client import client_settings, print_json

SCHEMES = ("postgres", "postgresql")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``queue init``."""
    parser.add_argument(
        "url",
        metavar="STORE_URL",
        nargs="?",
        help="postgres://USER@HOST/DATABASE (default: QUEUEBELL_STORE, which shows a password to no other user)",
    )
    parser.add_argument(
        "--notify",
        action=argparse.BooleanOptionalAction,
        help="have every put, a plain INSERT too, trigger 'serve --postgres' (default: leave it as it is)",
    )


def run(args: argparse.Namespace) -> int:
    """Make what is missing, say what was done, and return 0; doing it again does nothing."""
    settings = client_settings(args)
    url = args.url or settings.store
    if url.partition(":")[0].lower() not in SCHEMES:
        raise ConfigurationError(
            "store: this is no address of a database, which alone needs tables: postgres://USER@HOST/DATABASE, "
            "without a driver's name (postgresql+asyncpg)"
        )
    from bridge.queues.postgres.schema import init

    done = asyncio.run(init(url, notify=args.notify, prefix=settings.prefix))
    if args.json:
        print_json({"done": done})
    else:
        for line in done or ["nothing to do: the tables are there and of this version"]:
            print(line)
    return 0
