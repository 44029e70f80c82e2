"""JSON Schemas of structs, with words and limits for readers of a reference; pure.

A struct says which fields there are, of what type, and which have to be there. What a field means to somebody outside,
and the limits that are checked after decoding, stand in a table of `Words`, which may name nothing that is not there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

Json = dict[str, Any]
Words = Mapping[str, Mapping[str, Json]]
"""By the names of a struct and a field: keywords for its schema, ``description`` above all; "" is the struct itself."""

PLACE = "#/components/schemas/"

# Rules of the protocol, which are cited in code: "(B1)", "(L4, L6)".
_rules = re.compile(r"\s*\((?:[A-Z]\d+(?:, )?)+\)")


def said(text: str, **keywords: Any) -> Json:
    """Return the words for one field, with further keywords of its schema."""
    return {"description": text, **keywords}


def reference(struct: type[msgspec.Struct] | str) -> Json:
    """Return a reference to the schema of a struct."""
    return {"$ref": PLACE + (struct if isinstance(struct, str) else struct.__name__)}


def components(structs: Iterable[Any], words: Words, *, sent: bool = False) -> dict[str, Json]:
    """Return the schemas of these structs and all that they hold, by name.

    ``sent`` says that they are ours to send: a field that is always written is required then, and no default is told.
    Raises `KeyError` for words about a field that is not there.
    """
    kinds = list(structs)
    _, found = msgspec.json.schema_components(kinds, ref_template=PLACE + "{name}")
    known = {kind.__name__: kind for kind in _structs(kinds)}
    for name, schema in found.items():
        # Up to 3.12 a docstring has the indentation of its code.
        schema["description"] = _rules.sub("", inspect.cleandoc(schema.get("description", ""))).replace("`", "")
        del schema["title"]
        if sent:
            _as_sent(schema, known[name])
        if not schema.get("required", True):
            del schema["required"]
        for field, keywords in words.get(name, {}).items():
            _say(schema["properties"][field] if field else schema, keywords)
    return found


def _say(schema: Json, keywords: Json) -> None:
    kinds = schema.get("anyOf", [])
    inner = kinds[0] if len(kinds) == 2 and kinds[1] == {"type": "null"} else schema
    for keyword, value in keywords.items():
        # Words and alternatives are about the whole; limits are about what is not null.
        (schema if keyword in {"description", "oneOf"} else inner)[keyword] = value


def _as_sent(schema: Json, kind: type[msgspec.Struct]) -> None:
    if kind.__struct_config__.omit_defaults:
        always = set(schema["required"])
    else:
        fields = msgspec.structs.fields(kind)
        always = {each.encode_name for each in fields if "UnsetType" not in str(each.type)}
    schema["required"] = [name for name in schema["properties"] if name in always or name == "type"]
    for field in schema["properties"].values():
        field.pop("default", None)


def _structs(kinds: Iterable[Any]) -> list[type[msgspec.Struct]]:
    """Return these structs and all that their fields hold."""
    found: dict[type[msgspec.Struct], None] = {}

    def look(kind: msgspec.inspect.Type) -> None:
        if isinstance(kind, msgspec.inspect.StructType):
            if kind.cls in found:
                return
            found[kind.cls] = None
            for field in kind.fields:
                look(field.type)
        elif isinstance(kind, msgspec.inspect.UnionType):
            for one in kind.types:
                look(one)
        elif isinstance(kind, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
            look(kind.item_type)
        elif isinstance(kind, msgspec.inspect.DictType):
            look(kind.value_type)

    for each in kinds:
        look(msgspec.inspect.type_info(each))
    return list(found)
