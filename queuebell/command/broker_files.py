"""What nats-server and mosquitto read, written from an access list: users, and what each may publish and hear."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from queuebell.bridge.access.broker_grants import ANY, BRIDGE_USER, BrokerUser, Topic

_ECHO: Final = "echo"


def nats_file(users: Iterable[BrokerUser]) -> str:
    """Return the ``authorization`` block of nats-server's configuration; passwords come from its environment.

    Each user has an inbox of its own, for answers are nobody else's; the bridge may answer whom it hears.
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
