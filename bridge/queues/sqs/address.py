"""``sqs://REGION[/PREFIX]?...`` and how queue references become names of SQS queues and back."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from bridge.contract.errors import BadQueueReference, ConfigurationError
from bridge.contract.names import is_token, parse_reference, split_reference

NAME_MAX: Final = 80
WAIT_S_MAX: Final = 20
OPTIONS: Final = ("account", "endpoint", "wait")

_region = re.compile(r"[a-z]{2}[a-z0-9-]{1,30}").fullmatch
_prefix = re.compile(r"[A-Za-z0-9_-]{0,60}").fullmatch
# A dash of the account is doubled, so that the first run of dashes of odd length is where the queue begins.
_joined = re.compile(r"((?:[A-Za-z0-9_]|--)+)-([A-Za-z0-9][A-Za-z0-9_-]*)").fullmatch


class SqsAddress:
    """Where the queues are, checked.

    ``account/queue`` is the SQS queue ``PREFIXaccount-queue``, with each dash of the account doubled: no two references
    meet in one name. With ``account=NAME`` the address is for that account alone, and its queues are called
    ``PREFIXqueue``: so any queue that is there already has a reference. ``endpoint`` is another server than Amazon's,
    ``wait`` the seconds of a long poll, 1 to 20. Raises `ConfigurationError`, without repeating the address.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            given = dict(parse_qsl(parts.query, keep_blank_values=True))
        except ValueError:
            raise ConfigurationError("store: the address is malformed") from None
        if not _region(parts.netloc) or not _prefix(parts.path.removeprefix("/")) or parts.fragment:
            raise ConfigurationError("store: an address of SQS is sqs://REGION[/PREFIX], as in sqs://eu-central-1")
        if unknown := sorted(set(given) - set(OPTIONS)):
            raise ConfigurationError(f"store: {len(unknown)} unknown options; those of sqs:// are {', '.join(OPTIONS)}")
        wait, self.endpoint, self.account = given.get("wait", "1"), given.get("endpoint"), given.get("account")
        if not (wait.isascii() and wait.isdigit() and 1 <= int(wait) <= WAIT_S_MAX):
            raise ConfigurationError(f"store: wait is the seconds of a long poll, 1 to {WAIT_S_MAX}")
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigurationError("store: endpoint must start with http:// or https://")
        if self.account is not None and not is_token(self.account):
            raise ConfigurationError("store: account is that of a queue reference")
        self.region = parts.netloc
        self.prefix = parts.path.removeprefix("/")
        self.wait_s = int(wait)
        # An endpoint may carry a user and a password.
        self.place = re.sub("//[^/]*@", "//", self.endpoint or "")
        self.text = f"sqs://{self.region}{parts.path}" + (f" at {urlsplit(self.place).netloc}" if self.place else "")

    def name(self, reference: str) -> str:
        """Return the name of the SQS queue of a reference.

        Raises `BadQueueReference` where SQS has no room for the name, and for another account than the address has.
        """
        account, queue = split_reference(parse_reference(reference))
        if self.account is None:
            name = f"{self.prefix}{account.replace('-', '--')}-{queue}"
        elif account == self.account:
            name = self.prefix + queue
        else:
            raise BadQueueReference("the store's address is for one account, and the reference names another")
        if len(name) > NAME_MAX:
            raise BadQueueReference(f"the name of an SQS queue is at most {NAME_MAX} characters, prefix and account in")
        return name

    def reference(self, name: str) -> str | None:
        """Return the reference of an SQS queue, None where it has none here."""
        if not name.startswith(self.prefix):
            return None
        rest = name.removeprefix(self.prefix)
        if self.account is not None:
            return f"{self.account}/{rest}" if is_token(rest) else None
        found = _joined(rest)
        if found is None:
            return None
        account, queue = found[1].replace("--", "-"), found[2]
        return f"{account}/{queue}" if is_token(account) and is_token(queue) else None
