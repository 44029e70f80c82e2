"""Where a NATS server is and as which user to connect: the servers of a cluster, credentials and TLS.

`Servers` chooses the server of the next attempt and outlives the connections. `NatsAccess` makes the client library's
options for it, and says what a refusal means.
"""

from __future__ import annotations

import functools
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from queuebell.bridge.brokers.address import PORTS, Address, Host, TlsOptions, readable
from queuebell.bridge.brokers.credential import open_to_all
from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.address import is_host, port_number, split_port
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.errors import BusUnavailable, ConfigurationError

log = logging.getLogger("queuebell.access")

OPTIONS: Final = ("credentials", "nkey", "name", "stream", "durable", "ack_wait", "inbox")
CREDENTIALS_MARKS: Final = (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")
"""Without the first, nats-py reads the file for ever."""
LEARNED_MAX: Final = 64
TRY_S: Final = 2.0
"""The most for one of several servers, so that one that hangs does not block the others."""


class NatsAccess:
    """User and password, a token (a user alone), a credentials file or an nkey's file; and TLS.

    ``name`` is the connection's name at the server, unless the address has one.
    """

    def __init__(self, where: Address, name: str) -> None:
        self._where = where
        self._name = where.options.get("name", name)
        self._credentials = where.options.get("credentials")
        self._nkey = where.options.get("nkey")
        self._tls = TlsOptions.of(where)
        if sum(map(bool, (self._credentials, self._nkey, where.user))) > 1:
            raise ConfigurationError("broker: give only one of credentials, nkey, or user and password")

    @property
    def by_file(self) -> bool:
        """Whether the client library reads a file to connect."""
        return bool(self._credentials or self._nkey)

    def text(self, server: Node) -> str:
        """Return the address of one server, for logs and errors."""
        return f"{'tls' if self._where.encrypted else 'nats'}://{server.host}"

    def options(self, transport: Callable[[], Any], server: Node) -> dict[str, Any]:
        """Return the library's options; ``transport`` returns its connection when it asks for a secret."""
        options: dict[str, Any] = {
            "servers": f"nats://{server.host}",
            "name": self._name,
            "allow_reconnect": False,  # decided by the supervisor, once for all brokers
            "max_reconnect_attempts": 1,  # 0 would mean for ever
            "reconnect_time_wait": 0,
            "connect_timeout": 4,
            "ping_interval": 10,
            "max_outstanding_pings": 2,
            "pending_size": 0,  # with a buffer, messages of an outage are sent before there are subscribers
            "inbox_prefix": self._where.options.get("inbox", "_INBOX"),
            "skip_subject_validation": True,  # done by `Topics`, once for each
        }
        if self._where.encrypted or self._tls.given():
            options["tls"] = self._tls.context()
            options["tls_hostname"] = self._tls.hostname or server.name

        def secret(text: str) -> Callable[[], str]:
            def checked() -> str:
                self.check_encrypted(transport())
                return text

            return checked

        if self._credentials:
            options["user_credentials"] = readable("credentials", self._credentials, *CREDENTIALS_MARKS)
            _warn_if_open("credentials", self._credentials)
        elif self._nkey:
            options["nkeys_seed"] = readable("nkey", self._nkey)
            _warn_if_open("nkey", self._nkey)
        elif self._where.user is not None and self._where.password is not None:
            options["user"], options["password"] = secret(self._where.user), secret(self._where.password)
        elif self._where.user is not None:
            options["token"] = secret(self._where.user)
        return options

    def check_encrypted(self, transport: Any) -> None:
        """Raise `ConfigurationError` for a connection without TLS where the address asks for it.

        nats-py uses TLS only if the server asks for it: it would send the password to another one unencrypted.
        """
        if self._where.encrypted and transport.get_extra_info("ssl_object") is None:
            raise ConfigurationError(f"broker: {self._where.text} does not offer TLS; use nats:// if that is intended")

    def refusal(self, error: Exception, last: str, server: Node) -> Exception:
        """Return the error for a failed attempt; ``last`` is the library's last error text."""
        if isinstance(error, BusUnavailable):
            return error
        words = last or error_text(error)
        lower = words.lower()
        wrong = (
            "authorization violation" in lower
            or ("authentication" in lower and "expired" not in lower)
            or isinstance(error, ssl.SSLCertVerificationError)
            or "certificate verify failed" in lower
        )
        if wrong:
            return ConfigurationError(f"broker: {self.text(server)}: {words}")
        return (
            self.unusable(server) if isinstance(error, ValueError) else BusUnavailable(f"{self.text(server)}: {words}")
        )

    def unusable(self, server: Node) -> ConfigurationError:
        """Return the error for files that the library fails at; its own text may contain their content."""
        return ConfigurationError(f"broker: {self.text(server)}: the credentials cannot be used")


@functools.lru_cache(maxsize=64)
def _warn_if_open(option: str, path: str) -> None:
    """Warn once for each file, although it is read for every connection."""
    if exposed := open_to_all(path):
        log.warning("broker: %s: %s", option, exposed)


def check_installed() -> None:
    """Raise `ConfigurationError` that names the extra where the client library is missing."""
    try:
        import nats.aio.client  # noqa: F401
    except ImportError:
        raise ConfigurationError(f"broker: nats:// needs the extra: {install('nats')}") from None


def error_text(error: BaseException) -> str:
    """Return the library's text for an error."""
    return (str(error) or type(error).__name__).removeprefix("nats: ")


class Node(NamedTuple):
    """A server and the name in its certificate; ``learned`` if another server reported it."""

    host: Host
    name: str
    learned: bool = False


class Servers:
    """The servers of one cluster, in the order in which they are tried, which begins at random.

    A server that was tried, with or without success, comes last. Servers that another one reports (``connect_urls``)
    join those of the address, which always stay: behind a container or NAT the reported ones may lead nowhere.
    """

    def __init__(self, hosts: Sequence[Host], draw: Draw) -> None:
        self._turns = [Node(host, host.name) for host in hosts]
        for last in range(len(self._turns) - 1, 0, -1):
            chosen = min(last, int(draw() * (last + 1)))
            self._turns[last], self._turns[chosen] = self._turns[chosen], self._turns[last]

    def turns(self) -> list[Node]:
        """Return all servers, the next one first."""
        return list(self._turns)

    def tried(self, server: Node) -> None:
        """Move a server that was tried behind all others."""
        if server in self._turns:
            self._turns.remove(server)
            self._turns.append(server)

    def learn(self, addresses: object, source: Node) -> None:
        """Replace the learned servers by those that ``source`` reports; an empty report changes nothing.

        Each is ``HOST:PORT``; anything else is left out. A server reported by its IP address must show a certificate
        with the name of ``source``.
        """
        if not isinstance(addresses, list) or not addresses:
            return
        known = {server.host for server in self._turns if not server.learned}
        found: dict[Host, Node] = {}
        for text in addresses:
            host = _host(text)
            if host is not None and host not in known and len(found) < LEARNED_MAX:
                found[host] = Node(host, source.name if _is_address(host.name) else host.name, learned=True)
        kept = [server for server in self._turns if not server.learned or server.host in found]
        new = [server for host, server in found.items() if all(each.host != host for each in kept)]
        # The one in use was tried.
        self._turns = [each for each in kept if each != source] + new + [each for each in kept if each == source]


def _is_address(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdigit()


def _host(text: object) -> Host | None:
    if not isinstance(text, str):
        return None
    name, given = split_port(text)
    port = PORTS["nats"] if given is None else port_number(given)
    return Host(name.lower(), port) if is_host(name) and port is not None else None
