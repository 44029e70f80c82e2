"""Bodies as Azure's queues hold them: text within XML, which most consumers expect to be base64.

The SDK's own decoder skips what it does not know, so that plain text becomes bytes of no meaning; here base64 is what
decodes strictly, and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from typing import Final

from bridge.contract.errors import BadInput

TEXT_BYTES_MAX: Final = 64 * 1024
BYTES_MAX: Final = {"base64": TEXT_BYTES_MAX // 4 * 3, "auto": TEXT_BYTES_MAX // 4 * 3, "text": TEXT_BYTES_MAX}
"""The longest body by encoding: the service counts what is written."""
_strange = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]").search

log = logging.getLogger("queuebell.store")


class Encoding:
    """How bodies become text and back: ``base64``, ``text``, or ``auto``.

    ``base64`` and ``auto`` write base64. Both read as text what is none: a message of a stranger must reach a handler,
    which can refuse it. ``base64`` logs that; ``auto`` is for queues where producers of both kinds are expected.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.bytes_max = BYTES_MAX[kind]

    def check(self, body: bytes) -> None:
        """Raise `BadInput` for a body that is too long, or that text cannot hold."""
        if len(body) > self.bytes_max:
            raise BadInput("message_too_large", f"a message body is at most {self.bytes_max} bytes here")
        if self._kind == "text" and _plain(body) is None:
            raise BadInput("bad_parameter", "with encoding=text a body is UTF-8 that XML can hold; use base64")

    def written(self, body: bytes) -> str:
        """Return the text of a body that was checked."""
        if self._kind == "text":
            return _plain(body) or ""
        return base64.b64encode(body).decode("ascii")

    def read(self, text: str, message_id: str) -> bytes:
        """Return the body that a text stands for."""
        if self._kind == "text":
            return text.encode()
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            if self._kind == "base64":
                log.warning("message %s is not base64 and is taken as text: see encoding= of the store", message_id)
            return text.encode()


def _plain(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if _strange(text) is None else None
