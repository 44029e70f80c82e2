"""Create, list and revoke the keys of a bridge with --auth, and print the matching access lists for brokers.

A running bridge applies a change within a second, without a restart. The command reads and writes the access file, so
run it on the bridge's machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import re
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from queuebell.bridge.access import access_file
from queuebell.bridge.access.broker_grants import ANY, BRIDGE_USER, BrokerUser, Topic, broker_users
from queuebell.bridge.access.grants import Verb
from queuebell.bridge.access.keys import CHANCE_BYTES, AccessList, new_key, with_terms, without
from queuebell.bridge.access.limits import NO_LIMITS, Limits
from queuebell.bridge.brokers.address import check_prefix
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.command.client import print_json, print_table
from queuebell.command.main import ActionParser, show_examples
from queuebell.settings import load

_DAY_S: Final = 86_400.0
_DAYS_MAX: Final = 36_500.0
_NOTHING: Final = "none"
_LIMITS: Final = ", ".join(Limits.__struct_fields__)
_VERBS: Final = ", ".join(verb.value for verb in Verb)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands of ``key``."""
    subs = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=ActionParser)
    create = subs.add_parser(
        "create",
        help="create a key, and print it once",
        description="Create a key for a principal and print it. Only its hash is stored.",
        allow_abbrev=False,
    )
    create.add_argument("principal", metavar="NAME", help="whose key it is: a producer's, a worker's, a person's")
    create.add_argument("--days", type=float, metavar="N", help="days until the key expires (default: never)")
    change = subs.add_parser(
        "change",
        help="change the grants and limits of a principal",
        description="Change the grants and limits of a principal. A running bridge applies it within a second.",
        allow_abbrev=False,
    )
    change.add_argument("principal", metavar="NAME", help="the principal to change")
    for sub in (create, change):
        _add_terms(sub)
    list_ = subs.add_parser("list", help="list the keys, their principals and grants", allow_abbrev=False)
    list_.add_argument("--json", action="store_true", help="write JSON for scripts")
    revoke = subs.add_parser(
        "revoke", help="revoke a key or certificate, or all of a principal, within a second", allow_abbrev=False
    )
    revoke.add_argument("key", metavar="ID_OR_NAME", help="as shown by 'queuebell key list'")
    for name, examples in {
        "create": ("billing-worker --allow 'take=billing/*' --days 90", "me --allow 'look=*' --allow 'operate=*'"),
        "change": ("billing-worker --limit puts_per_second=500", "ann --allow none"),
        "list": ("--json",),
        "revoke": ("billing-worker",),
    }.items():
        show_examples(subs.choices[name], f"key {name}", examples)
    brokers = [
        subs.add_parser(
            name,
            help=f"print a configuration for {server} with the same grants",
            description=f"Print {what} for {server}, from the access file. Nothing in it is secret.",
            allow_abbrev=False,
        )
        for name, server, what in (
            ("nats", "nats-server", "users and permissions"),
            ("mqtt", "mosquitto", "an acl_file"),
        )
    ]
    for broker in brokers:
        show_examples(broker, broker.prog.removeprefix("queuebell "), ("", "--prefix shop"))
        broker.add_argument("--prefix", metavar="TOKEN", help="the prefix of the bridge's brokers (default queuebell)")
    for sub in (create, change, list_, revoke, *brokers):
        sub.add_argument("--access", metavar="FILE", help="default access.json in the --data directory")
        sub.add_argument("--data", metavar="DIR", help="the data directory of the bridge, default ./queuebell-data")
        sub.add_argument("--config", metavar="FILE", help="TOML file (default: $QUEUEBELL_CONFIG, or none)")


def _add_terms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="VERB=PATTERN",
        help=f"what the principal may do, instead of what it could do before; repeatable."
        f" VERB is one of {_VERBS}; PATTERN is '*', 'account/*' or 'account/queue'; '{_NOTHING}' alone grants nothing",
    )
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="LIMIT=N",
        help=f"a limit for all keys of the principal together; repeatable."
        f" LIMIT is one of {_LIMITS}; N 'none' removes one",
    )
    parser.add_argument(
        "--certificate",
        action="append",
        default=[],
        metavar="NAME",
        help="accept a client certificate with this name (DNS:..., URI:... or email:...) as the principal; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    """Do what was asked, and return 0; raises `ConfigurationError` for what cannot be."""
    prefix = {"prefix": args.prefix} if args.action in ("nats", "mqtt") else {}
    settings = load(args.config, options={"access": args.access, "data": args.data, **prefix})
    path = settings.access_file()
    if args.action == "create" and not args.certificate:
        return _create(args, path)
    if args.action in ("create", "change"):
        return _change(args, path)
    if args.action == "revoke":
        gone: list[tuple[str, str]] = []

        def revoked(listed: AccessList) -> AccessList:
            made, these = without(listed, args.key)
            gone.extend(these)
            return made

        access_file.read(path)
        left = access_file.change(path, revoked)
        for what, whose in gone:
            print(f"revoked {what} of {whose}")
        if args.key in left.principals and any(left.principals[args.key].values()):
            print(
                f"{args.key} keeps its grants: its tokens of an issuer and accounts of the Azure endpoint, if any,"
                f" still work; queuebell key change {args.key} --allow {_NOTHING} ends them too"
            )
        return 0
    listed = access_file.read(path)
    if prefix:
        users = broker_users(listed, check_prefix(settings.prefix), cluster=args.action == "nats")
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
            _with_terms(listed, args),
            args.principal,
            chance=secrets.token_bytes(CHANCE_BYTES),
            now=now,
            expires_at=None if args.days is None else now + args.days * _DAY_S,
        )
        return made

    access_file.change(path, with_key)
    print(secret)
    print(
        f"{args.principal} is in {path}, which a bridge reads with --auth. The key is shown only now: clients take it "
        "from QUEUEBELL_API_KEY",
        file=sys.stderr,
    )
    return 0


def _change(args: argparse.Namespace, path: pathlib.Path) -> int:
    if args.action == "create" and args.days is not None:
        raise ConfigurationError("days: a certificate has its own expiry")
    if args.action == "change":
        if not (args.allow or args.limit or args.certificate):
            raise ConfigurationError("change: needs --allow, --limit or --certificate")
        if args.principal not in access_file.read(path).principals:
            raise ConfigurationError(f"{args.principal}: there is no such principal; `queuebell key list` shows them")
    access_file.change(path, lambda listed: _with_terms(listed, args))
    for name in args.certificate:
        print(f"a certificate with {name} now means {args.principal}")
    return 0


def _with_terms(listed: AccessList, args: argparse.Namespace) -> AccessList:
    return with_terms(
        listed, args.principal, _grants(args.allow), limits=_limits(args.limit), certificates=args.certificate
    )


def _limits(given: list[str]) -> dict[str, str]:
    limits: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise ConfigurationError(f"limit: it is LIMIT=N, as in requests_per_second=100; LIMIT is one of {_LIMITS}")
        limits[name] = value
    return limits


def _grants(given: list[str]) -> dict[str, list[str]]:
    if given == [_NOTHING]:
        return {verb.value: [] for verb in Verb}
    grants: dict[str, list[str]] = {}
    for text in given:
        verb, equals, pattern = text.partition("=")
        if not equals or not pattern:
            raise ConfigurationError(
                f"allow: it is VERB=PATTERN, as in put=billing/*, or {_NOTHING} and nothing beside it;"
                f" VERB is one of {_VERBS}"
            )
        grants.setdefault(verb, []).append(pattern)
    return grants


def _list(listed: AccessList, *, as_json: bool) -> None:
    found: list[tuple[str, str, str | None, str | None]] = [
        (key.id, key.principal, _day(key.created_at), None if key.expires_at is None else _day(key.expires_at))
        for key in listed.keys
    ]
    found += [(each, name, None, None) for name, names in listed.certificates.items() for each in names]
    rows: list[dict[str, Any]] = [
        {
            "id": id_,
            "principal": principal,
            "created": created,
            "expires": expires,
            "may": listed.principals[principal],
            "limits": msgspec.to_builtins(listed.limits.get(principal, NO_LIMITS)),
        }
        for id_, principal, created, expires in found
    ]
    if as_json:
        print_json({"keys": rows})
        return
    print_table(
        ["ID", "PRINCIPAL", "CREATED", "EXPIRES", "MAY", "LIMITS"],
        [
            [
                row["id"],
                row["principal"],
                row["created"],
                (row["expires"] or "never") if row["created"] else None,
                _may(row["may"]),
                " ".join(f"{name}={value}" for name, value in row["limits"].items()) or None,
            ]
            for row in rows
        ],
    )


def _may(grants: dict[str, list[str]]) -> str:
    return " ".join(f"{verb}={pattern}" for verb, patterns in grants.items() for pattern in patterns)


def _day(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


_ECHO: Final = "echo"


def nats_file(users: Iterable[BrokerUser]) -> str:
    """Return the ``authorization`` block of nats-server's configuration; passwords come from its environment.

    Each user has an inbox of its own, because no other user may read its answers; the bridge may answer whom it hears.
    """
    users = list(users)
    variables = _variables([user.name for user in users])
    return "\n".join(
        [
            "# Who may do what at this nats-server, by `queuebell key nats`. Print it again when grants change.",
            '# In nats-server.conf: include "queuebell.conf". Passwords are in its environment, in quotes:',
            *(f"#   export {variable}='\"...\"'" for variable in variables.values()),
            "# Each connects, as the bridge does, by nats://NAME:PASSWORD@HOST:4222?inbox=_INBOX.NAME, or tls://...",
            "# Queues in JetStream need more than this: give them an account of their own.",
            "authorization {",
            "  users = [",
            *(line for user in users for line in _nats_user(user, variables[user.name])),
            "  ]",
            "}",
            "",
        ]
    )


def _nats_user(user: BrokerUser, variable: str) -> Iterator[str]:
    inbox = f"_INBOX.{user.name}.>"
    # Its echo is a message to the own inbox here.
    publish = [*(".".join(topic) for topic in user.publish if topic[1] != _ECHO), inbox]
    subscribe = [*(".".join(topic) for topic in user.subscribe if topic[1] != _ECHO), inbox]
    yield "    {"
    yield f"      user: {json.dumps(user.name)}, password: ${variable}"
    yield "      permissions: {"
    yield f"        publish: {json.dumps(publish)}"
    yield f"        subscribe: {json.dumps(subscribe)}"
    if user.name == BRIDGE_USER:
        yield '        allow_responses: { max: 1, expires: "1m" }'
    yield "      }"
    yield "    }"


def _variables(names: Iterable[str]) -> dict[str, str]:
    """Return a variable for each name, no two alike although names may differ in signs that variables have not."""
    found: dict[str, str] = {}
    for name in names:
        base = variable = "NATS_PASSWORD_" + re.sub("[^A-Z0-9]", "_", name.upper())
        number = 1
        while variable in found.values():
            number += 1
            variable = f"{base}_{number}"
        found[name] = variable
    return found


def mosquitto_file(users: Iterable[BrokerUser]) -> str:
    """Return mosquitto's ``acl_file``; its ``password_file`` is made by mosquitto_passwd."""
    users = list(users)
    first, *others = (user.name for user in users)
    lines = [
        "# Who may do what at this mosquitto, by `queuebell key mqtt`. Print it again when grants change.",
        "# In mosquitto.conf: allow_anonymous false, acl_file THIS FILE, password_file PASSWORDS, made by",
        f"#   mosquitto_passwd -c PASSWORDS {first}",
        *(f"#   mosquitto_passwd PASSWORDS {name}" for name in others),
        "# Each connects, as the bridge does, by mqtt://NAME:PASSWORD@HOST:1883, or mqtts://....",
    ]
    for user in users:
        lines += ["", f"user {user.name}"]
        both = [topic for topic in user.publish if topic in user.subscribe]
        lines += [f"topic readwrite {_mqtt(topic)}" for topic in both]
        lines += [f"topic write {_mqtt(topic)}" for topic in user.publish if topic not in both]
        lines += [f"topic read {_mqtt(topic)}" for topic in user.subscribe if topic not in both]
    return "\n".join([*lines, ""])


def _mqtt(topic: Topic) -> str:
    return "/".join("+" if token == ANY else token for token in topic)
