"""Open what a listener was given: its store, its channel to the bridge and its publisher; name its poison queue."""

from __future__ import annotations

import enum
from typing import Any, Final, cast

from queuebell.bridge.brokers import SCHEMES as BROKERS
from queuebell.bridge.brokers.credential import ApiKey, key_option
from queuebell.bridge.contract.address import http_addresses, is_http, one_text
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.missing_counts import UNTOLD
from queuebell.bridge.contract.names import POISON_SUFFIX, parse_reference, poison_reference, split_reference
from queuebell.bridge.contract.partitioning import Partitions
from queuebell.bridge.queues.base import BATCH_MAX, Capabilities, QueueStore
from queuebell.listeners.session.channel import Channel
from queuebell.listeners.work.events import Announces


class PullOnly(enum.Enum):
    """What a listener is given for a bridge where it is to poll alone."""

    PULL_ONLY = "pull-only"


PULL_ONLY: Final = PullOnly.PULL_ONLY


def open_store(given: str | QueueStore | Any, api_key: ApiKey = None) -> tuple[QueueStore, bool]:
    """Return the store of a URL, of a `Bridge` of this process, or the one given; and whether it is ours to close.

    ``api_key`` is for the queues of a bridge, at its own address. Raises `ConfigurationError` for a URL of no known
    kind.
    """
    given = one_text(given)
    if isinstance(given, str):
        from queuebell.bridge.queues import open_store as open_url

        return open_url(given, **(key_option(given, api_key) if is_http(given) else {})), True
    if hasattr(given, "local_channel"):
        return cast(QueueStore, cast(Any, given).store), False
    return cast(QueueStore, given), False


def check_store(given: object) -> None:
    """Raise `ConfigurationError` for a text that is not a store's URL.

    The error does not repeat it: it may hold a secret.
    """
    if not isinstance(given, str):
        return
    from queuebell.bridge.queues import STORES, WITHOUT_HOST

    scheme, colon, rest = given.partition(":")
    known = ", ".join(f"{known}:" for known in STORES)
    if not colon or scheme.lower() not in STORES:
        raise ConfigurationError(
            f"store: it comes before the queue, and is a URL whose scheme is one of {known} as in http://127.0.0.1:8470"
        )
    if scheme.lower() not in WITHOUT_HOST and not rest.startswith("//"):
        raise ConfigurationError(f"store: a URL of this scheme begins with {scheme.lower()}://")
    if is_http(given):
        http_addresses(given, "store")


def bridge_of(given: object, store: object) -> Any | None:
    """Return the bridge to listen to, None to poll alone: the one given, or else that at the store, where it is one.

    Otherwise the caller must name it: a worker that polls by mistake costs what the bridge saves. Raises
    `ConfigurationError`, also for an address at which no bridge can be (an invalid port, a path), because connecting
    there would be retried for ever.
    """
    given = one_text(given)
    if given is None:
        given = store if is_http(store) or hasattr(store, "local_channel") else getattr(store, "bridge_url", None)
    if given is None:
        raise ConfigurationError("bridge: no bridge is named. Pass bridge=..., or bridge=PULL_ONLY to poll without one")
    if is_http(given):
        http_addresses(given, "bridge")
    if not (
        given is PULL_ONLY or isinstance(given, str) or hasattr(given, "local_channel") or hasattr(given, "connect")
    ):
        raise ConfigurationError(
            f"bridge: is its URL, a list of URLs, a Bridge of this process, or PULL_ONLY, not {type(given).__name__}"
        )
    return None if given is PULL_ONLY else given


def puts_wake_listeners(bridge: Any, store: QueueStore) -> bool:
    """Return whether puts to a store wake by themselves: it is the bridge's own object, or behind the same web servers.

    A broker that carries both the session and the store is not the bridge's.
    """
    if hasattr(bridge, "local_channel"):
        return bridge.store is store
    url = getattr(store, "bridge_url", None)
    return is_http(bridge) and is_http(url) and _places(bridge) == _places(url)


def owns(bridge: Any, store: QueueStore) -> bool:
    """Return whether a store is a bridge's own queue service, as far as their addresses show.

    Equal bridges share a store that belongs to none: each needs reports of what another one leased.
    """
    return puts_wake_listeners(bridge, store) and (hasattr(bridge, "local_channel") or len(_places(bridge)) == 1)


def _places(url: str) -> set[tuple[str, int]]:
    return {(where.host, where.port) for where in http_addresses(url, "bridge")}


def batch_max(given: object) -> int:
    """Return the most messages of one receive: 32, or more where the store or its class allows it.

    Opens nothing: a URL that needs the environment, for example, is rejected only when the listener runs.
    """
    if isinstance(given, str):
        from queuebell.bridge.queues import class_of

        given = class_of(given)
    said = getattr(given, "capabilities", None)
    return said.call_max if isinstance(said, Capabilities) else BATCH_MAX


def check_client(store: QueueStore) -> None:
    """Raise `ConfigurationError` for a store whose client library is not installed, with what to install.

    It needs no network, so the error does not wait for a first receive.
    """
    check = getattr(store, "check_client", None)
    if check is not None:
        check()


def name_of(given: QueueStore | Channel) -> str:
    """Return what the log calls a store or a way to a bridge; an address without user, password and options.

    It is the class's name for one without a text of its own.
    """
    return type(given).__name__ if type(given).__str__ is object.__str__ else str(given)


def kind_of(store: QueueStore) -> str:
    """Return the kind of a store that lacks some counts (`bridge.contract.missing_counts`), else an empty text."""
    kind = getattr(store, "kind", "")
    return kind if kind in UNTOLD else ""


def open_channel(given: str | Any, instance: str, api_key: ApiKey = None) -> Channel:
    """Return the channel to the bridge of a URL, to a `Bridge` of this process, or the one given.

    Raises `ConfigurationError` for a URL of no known kind.
    """
    if hasattr(given, "local_channel"):
        from queuebell.listeners.session.channel import LocalChannel

        return LocalChannel(given)
    if isinstance(given, str):
        scheme = given.partition(":")[0].lower()
        if scheme in ("http", "https"):
            from queuebell.listeners.session.websocket import WebSocketChannel

            return WebSocketChannel(given, api_key=api_key)
        if scheme in BROKERS:
            from queuebell.listeners.session.brokered import BrokeredChannel

            return BrokeredChannel(given, instance, api_key=api_key)
        raise ConfigurationError(
            f"bridge: its URL starts with http://, https://, {', '.join(f'{known}://' for known in BROKERS)}"
        )
    return cast(Channel, given)


def open_publisher(given: str | Any, api_key: ApiKey = None) -> Announces:
    """Return a publisher to the bridge given."""
    from queuebell.bridge.producer.publisher import Publisher

    return Publisher(cast(Any, given), api_key=api_key if is_http(given) else None)


def poison_of(ref: str, given: str | None, whole: Partitions | None) -> str | None:
    """Return the poison queue of ``ref``; None if it is a poison queue itself.

    The partitions of a ``whole`` queue share one, so that one supervisor gets all messages. Raises
    `ConfigurationError` if a queue would be its own poison queue.
    """
    if given is not None:
        poison = parse_reference(given if "/" in given else f"{split_reference(ref)[0]}/{given}")
        if poison == ref:
            raise ConfigurationError(f"poison_queue: {ref} cannot be its own poison queue")
        return poison
    if whole is not None:
        return whole.poison
    return None if ref.endswith(POISON_SUFFIX) else poison_reference(ref)
