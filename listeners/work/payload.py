"""Decode bodies to the type that a listener was given as ``payload``."""

from __future__ import annotations

import importlib
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from queuebell.bridge.contract.errors import named, said

Decode = Callable[[bytes], object]

_FITS: Final = "a msgspec.Struct, a dataclass, a TypedDict, an attrs class, a Pydantic model, or made of these"
_LISTED_MAX: Final = 3
"""The most faults of one body that an error lists."""


def decoder(payload: Any) -> Decode:
    """Return what decodes JSON to ``payload``; it raises `msgspec.DecodeError` for what is not of the type.

    Raises `TypeError` for a type that no body could be decoded to, instead of dead-lettering every message. Pydantic is
    imported only where a type is of its kind.
    """
    if _is_pydantic(payload):
        return _pydantic(payload)  # unions among them, which msgspec would refuse
    try:
        decode: Decode = msgspec.json.Decoder(payload).decode
        parts = list(_parts(msgspec.inspect.type_info(payload), set()))
    except Exception as error:  # noqa: BLE001 - any fault of the type is reported
        raise TypeError(f"payload: {_name(payload)} cannot be decoded to: {said(error)}") from None
    if any(map(_is_pydantic, parts)):
        return _pydantic(payload)
    for cls in parts:
        _check(cls, payload)
    return decode


def _is_pydantic(given: Any) -> bool:
    return hasattr(given, "__pydantic_validator__") or any(map(_is_pydantic, typing.get_args(given)))


def _parts(info: object, seen: set[int]) -> Iterator[type]:
    """Yield the classes in a type that msgspec knows not, or that bring rules of their own."""
    if isinstance(info, tuple):
        for item in info:
            yield from _parts(item, seen)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) and id(info) not in seen:
        seen.add(id(info))
        if isinstance(info, msgspec.inspect.CustomType | msgspec.inspect.DataclassType):
            yield info.cls
        for name in info.__struct_fields__:
            if name != "default":
                yield from _parts(getattr(info, name), seen)


def _check(cls: type, payload: Any) -> None:
    fields: Any = getattr(cls, "__attrs_attrs__", None)
    if fields is not None:
        for field in fields:
            if field.converter is not None:
                raise TypeError(
                    f"payload: the converter of {cls.__qualname__}.{field.name} would not be called; decode in the "
                    "handler, or use a validator"
                )
    elif cls is not object and not hasattr(cls, "__dataclass_fields__"):
        within = "" if cls is payload else f" in {_name(payload)}"
        raise TypeError(f"payload: {cls.__module__}.{cls.__qualname__}{within} is not {_FITS}")


def _pydantic(payload: Any) -> Decode:
    pydantic: Any = importlib.import_module("pydantic")
    try:
        validate: Decode = pydantic.TypeAdapter(payload).validate_json
    except Exception as error:  # noqa: BLE001 - too
        why = named(error).splitlines()[0]
        raise TypeError(f"payload: Pydantic cannot decode to {_name(payload)}: {why}") from None
    invalid: type[Exception] = pydantic.ValidationError

    def decode(body: bytes) -> object:
        try:
            return validate(body)
        except invalid as error:
            raise msgspec.ValidationError(_summary(error)) from None

    return decode


def _summary(error: Any) -> str:
    """Return the faults in one line, without what the body held."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, fault['loc'])) or '$'}: {fault['msg']}" for fault in faults]
    more = len(lines) - _LISTED_MAX
    return "; ".join(lines[:_LISTED_MAX]) + (f"; and {more} more" if more > 0 else "")


def _name(payload: Any) -> str:
    return payload.__qualname__ if isinstance(payload, type) else str(payload)
