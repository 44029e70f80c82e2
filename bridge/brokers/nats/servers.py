"""Which server of a NATS cluster is tried next; pure but for chance, which is an argument.

Kept by whoever makes one connection after another. Servers take turns: whoever failed, and whoever was connected to,
is tried again after all others. What a server says of its cluster (``connect_urls``) joins those of the address, which
are never forgotten: behind a container or a translation of addresses what it says may lead nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from bridge.brokers.address import PORTS, Host
from bridge.contract.address import is_host, port_number, split_port
from bridge.contract.backoff import Draw

LEARNED_MAX: Final = 64
TRY_S: Final = 2.0
"""How long one of several servers may take: one that hangs is no reason to reach none."""


class Node(NamedTuple):
    """A server and the name that its certificate bears; ``learned`` where another one told of it."""

    host: Host
    name: str
    learned: bool = False


class Servers:
    """The servers of one address, in the order in which they are tried; the first turn is drawn by lot."""

    def __init__(self, hosts: Sequence[Host], draw: Draw) -> None:
        self._turns = [Node(host, host.name) for host in hosts]
        for last in range(len(self._turns) - 1, 0, -1):
            chosen = min(last, int(draw() * (last + 1)))
            self._turns[last], self._turns[chosen] = self._turns[chosen], self._turns[last]

    def turns(self) -> list[Node]:
        """Return all, the one to be tried first in front."""
        return list(self._turns)

    def tried(self, server: Node) -> None:
        """Hear that a server was tried, with whatever success: all others come before it now."""
        if server in self._turns:
            self._turns.remove(server)
            self._turns.append(server)

    def learn(self, told: object, teller: Node) -> None:
        """Take what ``teller`` says of its cluster, in place of what was said before; saying nothing changes nothing.

        Each is ``HOST:PORT``; what is not is left out. Of one that is told by its address the certificate has to bear
        the teller's name.
        """
        if not isinstance(told, list) or not told:
            return
        known = {server.host for server in self._turns if not server.learned}
        found: dict[Host, Node] = {}
        for text in told:
            host = _host(text)
            if host is not None and host not in known and len(found) < LEARNED_MAX:
                found[host] = Node(host, teller.name if _is_address(host.name) else host.name, learned=True)
        kept = [server for server in self._turns if not server.learned or server.host in found]
        new = [server for host, server in found.items() if all(each.host != host for each in kept)]
        # The one in use has had its turn.
        self._turns = [each for each in kept if each != teller] + new + [each for each in kept if each == teller]


def _is_address(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdigit()


def _host(text: object) -> Host | None:
    if not isinstance(text, str):
        return None
    name, given = split_port(text)
    port = PORTS["nats"] if given is None else port_number(given)
    return Host(name.lower(), port) if is_host(name) and port is not None else None
