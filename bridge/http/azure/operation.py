"""The operations of the Queue service, each with what a shared access signature has to grant for it."""

from __future__ import annotations

import enum


class Operation(enum.Enum):
    """One operation: its name in the documents, its level, and the letters, any of which allows it.

    ``level`` is ``s`` (service), ``c`` (queue) or ``o`` (message), the letters of an account signature's ``srt``.
    ``account_letters`` allow it in an account signature (``sp``), ``service_letters`` in one of a queue; none means
    that no such signature allows it.
    """

    LIST_QUEUES = ("ListQueues", "s", "l", "")
    GET_SERVICE_PROPERTIES = ("GetServiceProperties", "s", "r", "")
    SET_SERVICE_PROPERTIES = ("SetServiceProperties", "s", "w", "")
    GET_SERVICE_STATS = ("GetServiceStats", "s", "r", "")
    CREATE_QUEUE = ("CreateQueue", "c", "cw", "")
    DELETE_QUEUE = ("DeleteQueue", "c", "d", "")
    GET_QUEUE_METADATA = ("GetQueueMetadata", "c", "r", "r")
    SET_QUEUE_METADATA = ("SetQueueMetadata", "c", "w", "")
    GET_QUEUE_ACL = ("GetQueueACL", "c", "", "")
    SET_QUEUE_ACL = ("SetQueueACL", "c", "", "")
    PUT_MESSAGE = ("PutMessage", "o", "a", "a")
    GET_MESSAGES = ("GetMessages", "o", "p", "p")
    PEEK_MESSAGES = ("PeekMessages", "o", "r", "r")
    DELETE_MESSAGE = ("DeleteMessage", "o", "p", "p")
    UPDATE_MESSAGE = ("UpdateMessage", "o", "u", "u")
    CLEAR_MESSAGES = ("ClearMessages", "o", "d", "")

    # Members are compared by identity; the hash of a name would be computed in Python, several times a request.
    __hash__ = object.__hash__

    def __init__(self, title: str, level: str, account_letters: str, service_letters: str) -> None:
        self.title = title
        self.level = level
        self.account_letters = account_letters
        self.service_letters = service_letters
