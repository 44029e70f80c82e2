"""Topics as text and back: dots on NATS, slashes on MQTT, and no token that means more than itself on either."""

from __future__ import annotations

import re

from bridge.brokers.base import ANY, Topic
from bridge.contract.errors import BadInput

# Refused on both, so that a topic means the same on both: NATS's MQTT listener turns a dot within a level into "//".
_token = re.compile(r"[^\s\x00-\x1f\x7f./*+#>]+").fullmatch
_KNOWN_MAX = 10_000


class Topics:
    """Joins and splits with one separator, and remembers; what strangers make it remember is bounded."""

    def __init__(self, separator: str, wildcard: str) -> None:
        self._separator = separator
        self._wildcard = wildcard
        self._joined: dict[Topic, str] = {}
        self._split: dict[str, Topic] = {}

    def join(self, topic: Topic) -> str:
        """Return the text of a topic. Raises `BadInput` for tokens with separators or wildcards in them."""
        text = self._joined.get(topic)
        if text is None:
            _check(topic)
            text = self._separator.join(topic)
            if len(self._joined) >= _KNOWN_MAX:
                self._joined.clear()
            self._joined[topic] = text
        return text

    def pattern(self, pattern: Topic) -> str:
        """Return the text of a pattern. Raises `BadInput` as `join` does, and for ``$share`` and its like (B16)."""
        _check(tuple("any" if token == ANY else token for token in pattern))
        if pattern[0].startswith("$"):
            # NATS's MQTT listener grants `$share/...` and then delivers nothing; triggers are never shared anyway.
            raise BadInput("bad_parameter", "a pattern must not start with '$'")
        return self._separator.join(self._wildcard if token == ANY else token for token in pattern)

    def split(self, text: str) -> Topic:
        """Return the tokens of what the broker said; they may be anything, empty ones included."""
        topic = self._split.get(text)
        if topic is None:
            topic = tuple(text.split(self._separator))
            if len(self._split) >= _KNOWN_MAX:
                self._split.clear()
            self._split[text] = topic
        return topic


def matches(pattern: Topic, topic: Topic) -> bool:
    """Say whether ``topic`` is one of ``pattern``."""
    return len(pattern) == len(topic) and all(a in {ANY, b} for a, b in zip(pattern, topic, strict=True))


def _check(topic: Topic) -> None:
    if not topic or not all(_token(token) for token in topic):
        raise BadInput("bad_parameter", "a topic must consist of tokens without space, '.', '/', '*', '>', '+' and '#'")
