"""What a listener was given, opened: its store, its channel to the bridge, the publisher, and where it buries."""

from __future__ import annotations

import enum
from typing import Any, Final, cast

from bridge.brokers import SCHEMES as BROKERS
from bridge.brokers.credential import ApiKey, key_option
from bridge.contract.address import http_addresses, is_http, one_text
from bridge.contract.errors import ConfigurationError
from bridge.contract.names import POISON_SUFFIX, parse_reference, poison_reference, split_reference
from bridge.contract.partitioning import Partitions
from bridge.contract.untold import UNTOLD
from bridge.queues.base import BATCH_MAX, Capabilities, QueueStore
from listeners.session.channel import Channel
from listeners.work.events import Announces


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
        from bridge.queues import open_store as open_url

        return open_url(given, **(key_option(given, api_key) if is_http(given) else {})), True
    if hasattr(given, "local_channel"):
        return cast(QueueStore, cast(Any, given).store), False
    return cast(QueueStore, given), False


def check_store(given: object) -> None:
    """Refuse a text that is no store's URL, before anything else is read by it; raises `ConfigurationError`.

    Nothing of it is repeated: it may hold a secret.
    """
    if not isinstance(given, str):
        return
    from bridge.queues import STORES, WITHOUT_HOST

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

    Anywhere else somebody has to say it: a worker that polls unawares costs what the bridge spares. Raises
    `ConfigurationError`, also for the address of a web server at which no bridge can be (a port that is none, a path):
    a session would be asked for there for ever.
    """
    given = one_text(given)
    if given is None:
        given = store if is_http(store) or hasattr(store, "local_channel") else getattr(store, "bridge_url", None)
    if given is None:
        raise ConfigurationError(
            "bridge: nobody said where the bridge is; name it with bridge=..., or say bridge=PULL_ONLY to poll alone"
        )
    if is_http(given):
        http_addresses(given, "bridge")
    return None if given is PULL_ONLY else given


def rings(bridge: Any, store: QueueStore) -> bool:
    """Say whether puts to a store wake by themselves: it is the bridge's own object, or behind the same web servers.

    A broker that is the way to the bridge and the store as well has nothing of the bridge's.
    """
    if hasattr(bridge, "local_channel"):
        return bridge.store is store
    url = getattr(store, "bridge_url", None)
    return is_http(bridge) and is_http(url) and _places(bridge) == _places(url)


def owns(bridge: Any, store: QueueStore) -> bool:
    """Say whether a store is a bridge's own queue service, as far as the two tell.

    Equal bridges share a store that is none's own: each has to be told of what another one gave out.
    """
    return rings(bridge, store) and (hasattr(bridge, "local_channel") or len(_places(bridge)) == 1)


def _places(url: str) -> set[tuple[str, int]]:
    return {(where.host, where.port) for where in http_addresses(url, "bridge")}


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


def name_of(given: QueueStore | Channel) -> str:
    """Return what the log calls a store or a way to a bridge; of a strange one its class.

    That is its address without user, password and options.
    """
    return type(given).__name__ if type(given).__str__ is object.__str__ else str(given)


def kind_of(store: QueueStore) -> str:
    """Return the kind of a store that cannot tell all of a queue (`bridge.contract.untold`); empty for any other."""
    kind = getattr(store, "kind", "")
    return kind if kind in UNTOLD else ""


def open_channel(given: str | Any, instance: str, api_key: ApiKey = None) -> Channel:
    """Return the channel to the bridge of a URL, to a `Bridge` of this process, or the one given.

    Raises `ConfigurationError` for a URL of no known kind.
    """
    if hasattr(given, "local_channel"):
        from listeners.session.channel import LocalChannel

        return LocalChannel(given)
    if isinstance(given, str):
        scheme = given.partition(":")[0].lower()
        if scheme in ("http", "https"):
            from listeners.session.websocket import WebSocketChannel

            return WebSocketChannel(given, api_key=api_key)
        if scheme in BROKERS:
            from listeners.session.brokered import BrokeredChannel

            return BrokeredChannel(given, instance, api_key=api_key)
        raise ConfigurationError(
            f"bridge: its URL starts with http://, https://, {', '.join(f'{known}://' for known in BROKERS)}"
        )
    return cast(Channel, given)


def open_publisher(given: str | Any, api_key: ApiKey = None) -> Announces:
    """Return a publisher to the bridge given."""
    from bridge.producer.publisher import Publisher

    return Publisher(cast(Any, given), api_key=api_key if is_http(given) else None)


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
