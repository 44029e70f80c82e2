"""Make, list and revoke the keys of a bridge that asks for them, and print what brokers have to know of it.

A running bridge follows within a second, without a restart. The access file is read and written here, on its machine.
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import secrets
import time
from typing import Final

from bridge.brokers.prefix import check_prefix
from bridge.contract.errors import ConfigurationError
from bridge.core.broker_grants import broker_users
from bridge.core.grants import Verb
from bridge.core.keys import CHANCE_BYTES, AccessList, Key, new_key, without
from bridge.service.access import access_file
from queuebell.command.broker_files import mosquitto_file, nats_file
from queuebell.command.client import print_json, print_table
from queuebell.settings import load

_DAY_S: Final = 86_400.0
_DAYS_MAX: Final = 36_500.0
_VERBS: Final = ", ".join(verb.value for verb in Verb)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands of ``key``."""
    subs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = subs.add_parser(
        "create",
        help="make a key, and write it to standard output, once",
        description="Make a key for a principal and write it to standard output. Nothing keeps it but its hash.",
        allow_abbrev=False,
    )
    create.add_argument("principal", metavar="NAME", help="whose key it is: a producer's, a worker's, a person's")
    create.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="VERB=PATTERN",
        help=f"what the principal may from now on, instead of what it might before; repeatable."
        f" VERB is one of {_VERBS}; PATTERN is '*', 'account/*' or 'account/queue'",
    )
    create.add_argument("--days", type=float, metavar="N", help="the key expires after so many days (default: never)")
    list_ = subs.add_parser("list", help="show who has keys, and what they may", allow_abbrev=False)
    list_.add_argument("--json", action="store_true", help="write JSON for scripts")
    revoke = subs.add_parser(
        "revoke", help="end a key, or all keys of a principal, within a second", allow_abbrev=False
    )
    revoke.add_argument("key", metavar="ID_OR_NAME", help="as `queuebell key list` shows them")
    brokers = [
        subs.add_parser(
            name,
            help=f"print what {server} has to be told, so that it grants the same",
            description=f"Print {what} for {server}, from the access file. Nothing in it is secret.",
            allow_abbrev=False,
        )
        for name, server, what in (
            ("nats", "nats-server", "users and permissions"),
            ("mqtt", "mosquitto", "an acl_file"),
        )
    ]
    for broker in brokers:
        broker.add_argument("--prefix", metavar="TOKEN", help="as of the bridge's brokers (default queuebell)")
    for sub in (create, list_, revoke, *brokers):
        sub.add_argument("--access", metavar="FILE", help="default DIR/access.json, DIR as in --data")
        sub.add_argument("--data", metavar="DIR", help="the data directory of the bridge, default ./queuebell-data")
        sub.add_argument("--config", metavar="FILE", help="TOML file (default: $QUEUEBELL_CONFIG, or none)")


def run(args: argparse.Namespace) -> int:
    """Do what was asked, and return 0; raises `ConfigurationError` for what cannot be."""
    prefix = {"prefix": args.prefix} if args.action in ("nats", "mqtt") else {}
    settings = load(args.config, options={"access": args.access, "data": args.data, **prefix})
    path = settings.access_file()
    if args.action == "create":
        return _create(args, path)
    if args.action == "revoke":
        gone: list[Key] = []

        def revoked(listed: AccessList) -> AccessList:
            made, keys = without(listed, args.key)
            gone.extend(keys)
            return made

        access_file.read(path)
        access_file.change(path, revoked)
        for key in gone:
            print(f"revoked {key.id} of {key.principal}")
        return 0
    listed = access_file.read(path)
    if prefix:
        users = broker_users(listed, check_prefix(settings.prefix))
        print(nats_file(users) if args.action == "nats" else mosquitto_file(users), end="")
        return 0
    _list(listed, as_json=args.json)
    return 0


def _create(args: argparse.Namespace, path: pathlib.Path) -> int:
    if args.days is not None and not 0 < args.days <= _DAYS_MAX:
        raise ConfigurationError(f"days: above 0 and at most {_DAYS_MAX:g}")
    now = time.time()
    secret = ""

    def with_key(listed: AccessList) -> AccessList:
        nonlocal secret
        made, secret = new_key(
            listed,
            args.principal,
            _grants(args.allow),
            chance=secrets.token_bytes(CHANCE_BYTES),
            now=now,
            expires_at=None if args.days is None else now + args.days * _DAY_S,
        )
        return made

    access_file.change(path, with_key)
    print(secret)
    return 0


def _grants(given: list[str]) -> dict[str, list[str]]:
    grants: dict[str, list[str]] = {}
    for text in given:
        verb, equals, pattern = text.partition("=")
        if not equals or not pattern:
            raise ConfigurationError(f"allow: it is VERB=PATTERN, as in put=billing/*; VERB is one of {_VERBS}")
        grants.setdefault(verb, []).append(pattern)
    return grants


def _list(listed: AccessList, *, as_json: bool) -> None:
    rows = [
        {
            "id": key.id,
            "principal": key.principal,
            "created": _day(key.created_at),
            "expires": None if key.expires_at is None else _day(key.expires_at),
            "may": listed.principals[key.principal],
        }
        for key in listed.keys
    ]
    if as_json:
        print_json({"keys": rows})
        return
    print_table(
        ["ID", "PRINCIPAL", "CREATED", "EXPIRES", "MAY"],
        [
            [row["id"], row["principal"], row["created"], row["expires"] or "never", _may(row["may"])]  # type: ignore[arg-type]
            for row in rows
        ],
    )


def _may(grants: dict[str, list[str]]) -> str:
    return " ".join(f"{verb}={pattern}" for verb, patterns in grants.items() for pattern in patterns)


def _day(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
