"""Error messages for invalid JSON documents, without any of their values."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_unknown = re.compile(r"Object contains unknown field `.*?`(?: - at `\$(.*)`)?", re.DOTALL).fullmatch


def in_plain_words(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """Return why a document is not a ``kind``; for an unknown field it lists the known ones."""
    found = _unknown(str(error))
    if found is None:
        return str(error).replace("`", "'")
    within: Any = msgspec.inspect.type_info(kind)
    place = found[1] or ""
    for name in re.findall(r"\.(\w+)", place):
        (within,) = (field.type for field in within.fields if field.encode_name == name)
        # The items of a list, or the member of a union with fields.
        within = getattr(within, "item_type", within)
        within = next((each for each in getattr(within, "types", ()) if hasattr(each, "fields")), within)
    known = ", ".join(field.encode_name for field in within.fields) or "none"
    return f"unknown field{f' at ${place}' if place else ''}; known fields: {known}"
