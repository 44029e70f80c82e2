"""Queue references and the names made of them.

A queue reference is the text ``account/queue``. Both tokens match ``[A-Za-z0-9][A-Za-z0-9_-]{0,79}`` in full, so that a
reference is safe in a NATS subject, an MQTT topic, a URL and a file name without any quoting.
"""

from __future__ import annotations

import re

from queuebell.bridge.contract.errors import BadQueueReference

TOKEN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}"
POISON_SUFFIX = "-poison"
DEFAULT_PREFIX = "queuebell"

# fullmatch, because `$` accepts a trailing newline, which would get into subjects and log lines.
_token = re.compile(TOKEN).fullmatch
_reference = re.compile(f"({TOKEN})/({TOKEN})").fullmatch


def is_token(text: object) -> bool:
    """Return whether ``text`` is valid as an account or a queue name."""
    return isinstance(text, str) and _token(text) is not None


def parse_reference(text: object) -> str:
    """Return ``text`` if it is a queue reference.

    Raises `BadQueueReference` for everything else; the text is in its note, not in its message.
    """
    if isinstance(text, str) and _reference(text) is not None:
        return text
    raise BadQueueReference(
        "a queue reference is 'account/queue': two names of letters, digits, '_' and '-', at most 80 "
        "characters each, starting with a letter or digit",
        text,
    )


def reference(account: object, queue: object) -> str:
    """Join an account and a queue name into a reference.

    Raises `BadQueueReference` if either is not a token.
    """
    if isinstance(account, str) and isinstance(queue, str):
        return parse_reference(f"{account}/{queue}")
    raise BadQueueReference("account and queue name must both be text")


def split_reference(ref: str) -> tuple[str, str]:
    """Return account and queue name of a checked reference."""
    account, _, queue = ref.partition("/")
    return account, queue


def poison_reference(ref: str) -> str:
    """Return the reference of the poison queue of ``ref``.

    Raises `BadQueueReference` if the name becomes too long.
    """
    return parse_reference(ref + POISON_SUFFIX)
