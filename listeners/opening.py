"""What a listener was given, opened: its store, its channel to the bridge, the publisher, and where it buries."""

from __future__ import annotations

from typing import Any, Final, cast

from bridge.brokers import SCHEMES as BROKERS
from bridge.contract.errors import ConfigurationError
from bridge.contract.names import POISON_SUFFIX, parse_reference, poison_reference, split_reference
from bridge.contract.partitioning import Partitions
from bridge.queue import BATCH_MAX, Capabilities, QueueStore
from listeners.channel import Channel
from listeners.outward import Announces

_WITHOUT_HOST: Final = frozenset({"memory", "sqlite", "azure"})


def open_store(given: str | QueueStore | Any) -> tuple[QueueStore, bool]:
    """Return the store of a URL, of a `Bridge` of this process, or the one given; and whether it is ours to close.

    Raises `ConfigurationError` for a URL of no known kind.
    """
    if isinstance(given, str):
        from bridge.queues import open_store as open_url

        return open_url(given), True
    if hasattr(given, "local_channel"):
        return cast(QueueStore, cast(Any, given).store), False
    return cast(QueueStore, given), False


def check_store(given: object) -> None:
    """Refuse a text that is no store's URL, before anything else is read by it; raises `ConfigurationError`.

    Nothing of it is repeated: it may hold a secret.
    """
    if not isinstance(given, str):
        return
    from bridge.queues import STORES

    scheme, colon, rest = given.partition(":")
    known = ", ".join(f"{known}:" for known in STORES)
    if not colon or scheme.lower() not in STORES:
        raise ConfigurationError(
            f"store: it comes before the queue, and is a URL whose scheme is one of {known} as in http://127.0.0.1:8470"
        )
    if scheme.lower() not in _WITHOUT_HOST and not rest.startswith("//"):
        raise ConfigurationError(f"store: a URL of this scheme begins with {scheme.lower()}://")


def batch_max(given: object) -> int:
    """Return the most messages that may be asked of a store at once: 32, or more where its class or itself says so.

    Nothing is opened for it: a URL that needs an environment, say, is refused only when the listener runs.
    """
    if isinstance(given, str):
        from bridge.queues import class_of

        given = class_of(given)
    said = getattr(given, "capabilities", None)
    return said.call_max if isinstance(said, Capabilities) else BATCH_MAX


def check_client(store: QueueStore) -> None:
    """Refuse a store whose client library is not installed, with what to install; raises `ConfigurationError`.

    That needs no network, so nobody has to wait for a first receive to hear of it.
    """
    check = getattr(store, "check_client", None)
    if check is not None:
        check()


def name_of(store: QueueStore) -> str:
    """Return what the log calls a store: its address without user, password and options; of a strange one its class."""
    return type(store).__name__ if type(store).__str__ is object.__str__ else str(store)


def open_channel(given: str | Any, instance: str) -> Channel:
    """Return the channel to the bridge of a URL, to a `Bridge` of this process, or the one given.

    Raises `ConfigurationError` for a URL of no known kind.
    """
    if hasattr(given, "local_channel"):
        from listeners.channels.local import LocalChannel

        return LocalChannel(given)
    if isinstance(given, str):
        scheme = given.partition(":")[0].lower()
        if scheme in ("http", "https"):
            from listeners.channels.websocket import WebSocketChannel

            return WebSocketChannel(given)
        if scheme in BROKERS:
            from listeners.channels.brokered import BrokeredChannel

            return BrokeredChannel(given, instance)
        raise ConfigurationError(
            f"bridge: its URL starts with http://, https://, {', '.join(f'{known}://' for known in BROKERS)}"
        )
    return cast(Channel, given)


def open_publisher(given: str | Any) -> Announces:
    """Return a publisher to the bridge given."""
    from bridge.publisher import Publisher

    return Publisher(cast(Any, given))


def poison_of(ref: str, given: str | None, whole: Partitions | None) -> str | None:
    """Return where ``ref`` buries its messages; None if it is a poison queue itself, which never buries further.

    The partitions of a ``whole`` queue bury in one place, so that one supervisor has them all. Raises
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
