"""The operations of the Queue service, each with what a shared access signature has to grant for it."""

from __future__ import annotations

import enum

from bridge.access.grants import Verb


class Operation(enum.Enum):
    """One operation: its name in the documents, its level, and the letters, any of which allows it.

    ``level`` is ``s`` (service), ``c`` (queue) or ``o`` (message), the letters of an account signature's ``srt``.
    ``account_letters`` allow it in an account signature (``sp``), ``service_letters`` in one of a queue; none means
    that no such signature allows it. ``verb`` is what the account's principal has to be granted, where the bridge asks
    for keys.
    """

    LIST_QUEUES = ("ListQueues", "s", "l", "", Verb.LOOK)
    GET_SERVICE_PROPERTIES = ("GetServiceProperties", "s", "r", "", Verb.OPERATE)
    SET_SERVICE_PROPERTIES = ("SetServiceProperties", "s", "w", "", Verb.OPERATE)
    GET_SERVICE_STATS = ("GetServiceStats", "s", "r", "", Verb.OPERATE)
    CREATE_QUEUE = ("CreateQueue", "c", "cw", "", Verb.MANAGE)
    DELETE_QUEUE = ("DeleteQueue", "c", "d", "", Verb.MANAGE)
    GET_QUEUE_METADATA = ("GetQueueMetadata", "c", "r", "r", Verb.LOOK)
    SET_QUEUE_METADATA = ("SetQueueMetadata", "c", "w", "", Verb.MANAGE)
    GET_QUEUE_ACL = ("GetQueueACL", "c", "", "", Verb.MANAGE)
    SET_QUEUE_ACL = ("SetQueueACL", "c", "", "", Verb.MANAGE)
    PUT_MESSAGE = ("PutMessage", "o", "a", "a", Verb.PUT)
    GET_MESSAGES = ("GetMessages", "o", "p", "p", Verb.TAKE)
    PEEK_MESSAGES = ("PeekMessages", "o", "r", "r", Verb.LOOK)
    DELETE_MESSAGE = ("DeleteMessage", "o", "p", "p", Verb.TAKE)
    UPDATE_MESSAGE = ("UpdateMessage", "o", "u", "u", Verb.TAKE)
    CLEAR_MESSAGES = ("ClearMessages", "o", "d", "", Verb.MANAGE)

    # Members are compared by identity; the hash of a name would be computed in Python, several times a request.
    __hash__ = object.__hash__

    def __init__(self, title: str, level: str, account_letters: str, service_letters: str, verb: Verb) -> None:
        self.title = title
        self.level = level
        self.account_letters = account_letters
        self.service_letters = service_letters
        self.verb = verb
