"""Celery's messages as a store has them: JSON with body, headers and properties."""

from __future__ import annotations

import base64
import datetime
import time
from collections.abc import Mapping
from typing import Any

import msgspec


def seconds_left(payload: Mapping[str, Any]) -> float:
    """Return how long a task has to wait for its time; 0 without one, or with one that cannot be read."""
    eta = (payload.get("headers") or {}).get("eta")
    if not isinstance(eta, str):
        return 0.0
    try:
        at = datetime.datetime.fromisoformat(eta)
    except ValueError:
        return 0.0
    return at.timestamp() - time.time()  # without a zone it is the local time: Celery's without `enable_utc`


def payload_of(body: bytes) -> dict[str, Any]:
    """Decode a Celery message; raises `ValueError` for any other."""
    try:
        payload = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(payload, dict) or not isinstance(payload.get("properties"), dict):
        raise ValueError("it has no body and properties; was it put by something else than Celery?")
    properties = payload["properties"]
    payload["headers"] = headers = payload.get("headers") or {}
    if not isinstance(headers, dict) or not isinstance(properties.setdefault("delivery_info", {}), dict):
        raise ValueError("its headers or its delivery_info are no table")
    # What Celery's loop would fail over, and not just this message.
    text, encoding = payload.get("body"), properties.get("body_encoding")
    if not isinstance(text, str) or encoding not in (None, "utf-8", "base64"):
        raise ValueError("its body is no text, or in an unknown encoding")
    try:
        base64.b64decode(text if encoding == "base64" else "")
    except ValueError:
        raise ValueError("its body is no base64") from None
    return payload
