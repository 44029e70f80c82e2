"""What an error of Redis or of its client means for a store call."""

from __future__ import annotations

from typing import Final

from bridge.contract.errors import ConfigurationError, QueuebellError, StoreError, StoreFull, StoreUnavailable

# The client takes the first word of some answers away and says it by the class of its error; an answer to a script may
# have it somewhere inside.
_BY_CLASS: Final[dict[str, str]] = {
    "OutOfMemoryError": "OOM",
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "NoScriptError": "NOSCRIPT",
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "AuthenticationError": "NOAUTH",
    "AuthenticationWrongNumberOfArgsError": "NOAUTH",
    "AuthorizationError": "NOPERM",
    "NoPermissionError": "NOPERM",
}
_NOT_NOW: Final[dict[str, str]] = {
    "MISCONF": "it cannot write to its disk and takes no writes",
    "NOREPLICAS": "too few replicas are connected",
    "LOADING": "it is still reading its data",
    "READONLY": "it is a replica now",
    "MASTERDOWN": "it is a replica without its master",
    "CLUSTERDOWN": "the cluster is down",
    "TRYAGAIN": "the cluster is moving these keys",
    "BUSY": "a script of somebody runs for too long there",
}
_REFUSED: Final = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
_CLUSTER: Final = frozenset({"MOVED", "ASK", "CROSSSLOT"})
_WORDS: Final = frozenset({"OOM", "WRONGTYPE", *_NOT_NOW, *_REFUSED, *_CLUSTER})


def word_of(error: Exception) -> str:
    """Return the word by which the server names an error; empty where it said none that is known here."""
    by_class = _BY_CLASS.get(type(error).__name__)
    if by_class is not None:
        return by_class
    parts = str(error).replace("'", " ").replace(":", " ").split()
    return next((part.lstrip("-") for part in parts if part.lstrip("-") in _WORDS), "")


def explain(error: Exception, where: str, *, connecting: bool) -> QueuebellError:
    """Return our error for an answer of the server, which then changed nothing."""
    word = word_of(error)
    if word == "OOM":
        return StoreFull(f"{where}: its memory is full; what was acknowledged is safe, and can be received and deleted")
    if word in _NOT_NOW:
        return StoreUnavailable(f"{where}: {_NOT_NOW[word]} ({word}); nothing was changed")
    if word in _REFUSED:
        if connecting:
            return ConfigurationError(f"{where}: Redis does not let this user in ({word})")
        return StoreError(f"{where}: this user may not do that: {error}; nothing was changed")
    if word in _CLUSTER:
        return ConfigurationError(f"{where}: this is a node of a Redis Cluster, and this store speaks to one server")
    if word == "WRONGTYPE":
        return StoreError(f"{where}: a key of this queue is used for something else: {error}; choose another prefix")
    if connecting and "DB index" in str(error):
        return ConfigurationError(f"{where}: there is no database of this number")
    return StoreError(f"{where}: refused: {error}")
