"""Service properties of an account: logging, metrics and cross-origin rules.

Only the cross-origin rules have an effect here. The others are kept and given back, for clients that set them at start
and compare: this service's own metrics and logs are those of the bridge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from bridge.http.azure import xml_in, xml_out
from bridge.http.azure.cors import ANY, METHODS, CorsRule
from bridge.http.azure.errors import AzureError

RULES_MAX = 5
ORIGINS_MAX = 64
LITERAL_HEADERS_MAX = 64
PREFIXED_HEADERS_MAX = 2
TEXT_MAX = 256
DAYS_MAX = 365
AGE_S_MAX = 2**31 - 1


class Retention(msgspec.Struct, frozen=True):
    """How many days something is kept, 1 to 365; None is for ever."""

    days: int | None = None


class Logging(msgspec.Struct, frozen=True):
    """Which requests a log would hold."""

    delete: bool = False
    read: bool = False
    write: bool = False
    retention: Retention = Retention()


class Metrics(msgspec.Struct, frozen=True):
    """Whether figures would be kept, and those of each operation; None where they are not."""

    enabled: bool = False
    include_apis: bool | None = None
    retention: Retention = Retention()


class ServiceProperties(msgspec.Struct, frozen=True):
    """What was set for an account."""

    logging: Logging = Logging()
    hour: Metrics = Metrics()
    minute: Metrics = Metrics()
    cors: tuple[CorsRule, ...] = ()


def update(before: ServiceProperties, raw: bytes) -> ServiceProperties:
    """Return ``before`` with what the body of Set Queue Service Properties names; what it does not name stays.

    Raises `AzureError`: ``InvalidXmlDocument``, ``MissingRequiredXmlNode``, ``UnsupportedXmlNode`` or
    ``InvalidXmlNodeValue``.
    """
    root = xml_in.parse(raw)
    if root.name != "StorageServiceProperties":
        raise AzureError("InvalidXmlDocument")
    after = before
    for element in root.children:
        if element.name == "Logging":
            after = msgspec.structs.replace(after, logging=_logging(element))
        elif element.name in ("HourMetrics", "Metrics"):
            # Versions before 2013-08-15 know one kind, without its name.
            after = msgspec.structs.replace(after, hour=_metrics(element))
        elif element.name == "MinuteMetrics":
            after = msgspec.structs.replace(after, minute=_metrics(element))
        elif element.name == "Cors":
            after = msgspec.structs.replace(after, cors=_rules(element))
        else:
            raise AzureError("UnsupportedXmlNode", details={"XmlNodeName": element.name})
    return after


def render(properties: ServiceProperties) -> bytes:
    """Write the answer to Get Queue Service Properties."""
    logging = properties.logging
    parts = [
        f"{xml_out.DECLARATION}<StorageServiceProperties><Logging><Version>1.0</Version>",
        f"<Delete>{_word(logging.delete)}</Delete><Read>{_word(logging.read)}</Read>",
        f"<Write>{_word(logging.write)}</Write>{_kept(logging.retention)}</Logging>",
    ]
    for name, metrics in (("HourMetrics", properties.hour), ("MinuteMetrics", properties.minute)):
        parts.append(f"<{name}><Version>1.0</Version><Enabled>{_word(metrics.enabled)}</Enabled>")
        if metrics.include_apis is not None:
            parts.append(f"<IncludeAPIs>{_word(metrics.include_apis)}</IncludeAPIs>")
        parts.append(f"{_kept(metrics.retention)}</{name}>")
    parts.append("<Cors>")
    parts += [_rule_out(rule) for rule in properties.cors]
    parts.append("</Cors></StorageServiceProperties>")
    return "".join(parts).encode()


def _rule_out(rule: CorsRule) -> str:
    return (
        f"<CorsRule><AllowedOrigins>{_list(rule.origins)}</AllowedOrigins>"
        f"<AllowedMethods>{_list(rule.methods)}</AllowedMethods>"
        f"<MaxAgeInSeconds>{rule.max_age_s}</MaxAgeInSeconds>"
        f"<ExposedHeaders>{_list(rule.exposed)}</ExposedHeaders>"
        f"<AllowedHeaders>{_list(rule.allowed)}</AllowedHeaders></CorsRule>"
    )


def _logging(element: xml_in.Element) -> Logging:
    _check_version(element)
    return Logging(
        delete=_flag(element, "Delete"),
        read=_flag(element, "Read"),
        write=_flag(element, "Write"),
        retention=_retention(element),
    )


def _metrics(element: xml_in.Element) -> Metrics:
    _check_version(element)
    enabled = _flag(element, "Enabled")
    return Metrics(
        enabled=enabled, include_apis=_flag(element, "IncludeAPIs") if enabled else None, retention=_retention(element)
    )


def _retention(element: xml_in.Element) -> Retention:
    policy = element.required("RetentionPolicy")
    return Retention(_number(policy, "Days", 1, DAYS_MAX)) if _flag(policy, "Enabled") else Retention()


def _rules(element: xml_in.Element) -> tuple[CorsRule, ...]:
    if len(element.children) > RULES_MAX or any(each.name != "CorsRule" for each in element.children):
        raise AzureError("InvalidXmlDocument")
    return tuple(_rule(each) for each in element.children)


def _rule(element: xml_in.Element) -> CorsRule:
    origins = _texts(element, "AllowedOrigins", lambda found: 1 <= len(found) <= ORIGINS_MAX)
    methods = _texts(element, "AllowedMethods", lambda found: bool(found) and set(found) <= set(METHODS))
    return CorsRule(
        origins=origins,
        methods=methods,
        max_age_s=_number(element, "MaxAgeInSeconds", 0, AGE_S_MAX),
        exposed=_texts(element, "ExposedHeaders", _are_headers),
        allowed=_texts(element, "AllowedHeaders", _are_headers),
    )


def _are_headers(names: Sequence[str]) -> bool:
    prefixed = [name for name in names if name.endswith(ANY)]
    return (
        len(prefixed) <= PREFIXED_HEADERS_MAX
        and len(names) - len(prefixed) <= LITERAL_HEADERS_MAX
        # A name that goes into an answer's head must not end it.
        and all(char.isascii() and (char.isalnum() or char in "!#$%&'*+-.^_`|~") for name in names for char in name)
    )


def _texts(element: xml_in.Element, name: str, fit: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    found = tuple(text.strip() for text in element.required(name).text.split(",") if text.strip())
    if not fit(found) or any(len(text) > TEXT_MAX for text in found):
        raise xml_in.wrong(name)
    return found


def _check_version(element: xml_in.Element) -> None:
    if element.required("Version").text.strip() != "1.0":
        raise xml_in.wrong("Version")


def _flag(element: xml_in.Element, name: str) -> bool:
    text = element.required(name).text.strip().lower()
    if text not in ("true", "false"):
        raise xml_in.wrong(name)
    return text == "true"


def _number(element: xml_in.Element, name: str, low: int, high: int) -> int:
    text = element.required(name).text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and low <= int(text) <= high):
        raise xml_in.wrong(name)
    return int(text)


def _word(flag: bool) -> str:
    return "true" if flag else "false"


def _list(texts: Sequence[str]) -> str:
    return xml_out.escape(",".join(texts))


def _kept(retention: Retention) -> str:
    if retention.days is None:
        return "<RetentionPolicy><Enabled>false</Enabled></RetentionPolicy>"
    return f"<RetentionPolicy><Enabled>true</Enabled><Days>{retention.days}</Days></RetentionPolicy>"
