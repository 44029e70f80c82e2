"""What `schemathesis` is told of JSON that no schema says (`tests/reference/schemathesis.toml`)."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """Write whole numbers without a fraction: 1.0 is an integer to JSON Schema, and none to the bridge."""
    return whole(body)


def whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole(each) for each in value]
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    return value
