"""Puts that are refused while they are still bytes, so that an overload is not spent on telling of it.

A refusal by its route costs half of what a put costs: at twice the load that can be carried nothing would be carried.
Only the plain case is answered here: one whole request to put, with nothing unusual in its head. Whatever else comes
goes its usual way, and so does everything while puts are let in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from bridge.core.admission import Reason, Ticket
from bridge.http.server.answer import Answer, refuse
from bridge.http.server.problem import Refusal, problem_body
from bridge.service.put_gate import PutGate, in_words

_HEAD_MAX: Final = 2048
_put = re.compile(
    rb"(?:POST /v1/queues/[A-Za-z0-9_-]{1,80}/[A-Za-z0-9_-]{1,80}/messages"
    rb"|PUT /v1/queues/[A-Za-z0-9_-]{1,80}/[A-Za-z0-9_-]{1,80}/messages/[A-Za-z0-9._~:@=+-]{1,128})"
    rb"(?:\?[A-Za-z0-9_=&-]{0,200})? HTTP/1\.1\r\n"
).match
# These change how a request or its connection is to be taken, or are refused for what they say; so are lines that
# would have to be read with care.
_unusual = re.compile(
    rb"\r\n(?:connection|expect|transfer-encoding|content-encoding|upgrade|origin|queuebell-hop|[^:\r\n]*[ \t]:|[ \t])",
    re.IGNORECASE,
).search
_lengths = re.compile(rb"\r\ncontent-length: *([0-9]{1,10})(?=\r\n)", re.IGNORECASE).findall
_hosts = re.compile(rb"\r\nhost: *[^\r\n]+(?=\r\n)", re.IGNORECASE).findall
_keys = re.compile(rb"\r\nauthorization: *bearer +([^\r\n]*)(?=\r\n)", re.IGNORECASE).findall

_known: dict[bytes, int] = {}
_KNOWN_MAX: Final = 256


def whole_put(data: bytes) -> int | None:
    """Return the size of the body where these bytes are one request to put, whole and plain in every respect.

    None for everything else, also for what is refused for another reason.
    """
    found = _put(data)
    if found is None:
        return None
    end = data.find(b"\r\n\r\n", 0, _HEAD_MAX)
    if end < 0:
        return None
    # From the end of the request line to that of the head: a client says the same each time.
    head = data[found.end() - 2 : end + 2]
    announced = _known.get(head)
    if announced is None:
        announced = _plain(head)
        if announced is None:
            return None
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        _known[head] = announced
    return announced if announced == len(data) - end - 4 else None


def _plain(head: bytes) -> int | None:
    """Return the length that the lines of a head announce, where they say nothing unusual."""
    lengths = _lengths(head)
    if len(lengths) != 1 or head.lower().count(b"content-length") != 1 or len(_hosts(head)) != 1:
        return None
    return int(lengths[0]) if _unusual(head) is None else None


class Shed:
    """Asks the gate for whole puts on their arrival, and answers those that it refuses.

    A put counts as waiting from then on, and not only once its turn came: of all that one turn of the loop reads, no
    more are let in than can be answered in time. Whom a request names as its host is not looked at before it is
    refused: the answer says nothing but that the service is busy.
    """

    def __init__(self, gate: PutGate, fixed_headers: bytes) -> None:
        self.gate = gate
        self.knows: Callable[[str], bool] | None = None
        """Says whether a key is somebody's who may put now, where keys are asked for. Any other put goes its usual way:
        one with a token or certificate is judged there, and one that is refused there took nobody's place."""
        self.fixed_headers = fixed_headers
        self._answers: dict[tuple[Reason, int], tuple[Answer, bytes]] = {}

    def look(self, data: bytes) -> Ticket | bytes | None:
        """Return the ticket of a whole put, or the answer that refuses it; None for all else, which goes its way."""
        size = whole_put(data)
        if size is None or not self._of_somebody(data, size):
            return None
        asked = self.gate.ask(size)
        if isinstance(asked, Ticket):
            self.gate.begin(asked, size)
            return asked
        known = (asked.reason, asked.retry_after_s)
        made = self._answers.get(known)
        if made is None:
            # `Retry-After` is 1 to 30, so these are few.
            refusal = Refusal("too_many_requests", in_words(asked), retry_after=asked.retry_after_s)
            made = self._answers[known] = (refuse(refusal), problem_body(refusal))
        return made[0].render(self.fixed_headers, made[1])

    def _of_somebody(self, data: bytes, size: int) -> bool:
        if self.knows is None:
            return True
        keys = _keys(data, 0, len(data) - size)
        return len(keys) == 1 and self.knows(keys[0].decode("latin-1").strip(" "))
