"""The endpoint's data besides the queues: service properties of accounts and access policies of queues.

`JsonRecords` keeps them in one JSON file next to the queues' file. They are small and change seldom, so each change
writes the whole file: to a second one, flushed, and renamed. The XML of both is read and written here.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import pathlib
from collections.abc import Callable, Sequence

import msgspec

from queuebell.bridge.contract.errors import QueueNotFound, StoreDamaged, StoreError, Unsupported
from queuebell.bridge.http.azure import xml
from queuebell.bridge.http.azure.cors import ANY, METHODS, CorsRule
from queuebell.bridge.http.azure.errors import AzureError
from queuebell.bridge.http.azure.xml import read_iso, write_iso
from queuebell.bridge.queues.embedded.file import make_folder

VERSION = 2


class _Content(msgspec.Struct, frozen=True):
    """``made`` has the number of each queue of ``policies``; the default 0 is for files and queues of version 1."""

    version: int = VERSION
    properties: dict[str, ServiceProperties] = {}
    policies: dict[str, tuple[Policy, ...]] = {}
    made: dict[str, int] = {}


class JsonRecords:
    """Properties by account and policies by queue reference, in ``path``; None keeps them in memory.

    ``made`` returns a queue's number (`EmbeddedStore.number`): policies end with their queue. The constructor reads the
    file; raises `StoreDamaged` for another kind of file, and `StoreError` if it cannot be read. Only the process that
    owns the data directory writes it.
    """

    def __init__(self, path: str | os.PathLike[str] | None, made: Callable[[str], int | None]) -> None:
        self._made = made
        self._path = None if path is None else pathlib.Path(path)
        self._content = _Content() if self._path is None else _read(self._path)
        self._lock = asyncio.Lock()
        self._writing: dict[asyncio.Task[None], None] = {}

    def properties(self, account: str) -> ServiceProperties:
        """Return the properties set last, or the defaults."""
        return self._content.properties.get(account, _DEFAULT)

    async def change_properties(self, account: str, change: Callable[[ServiceProperties], ServiceProperties]) -> None:
        """Store the result of ``change``, which may raise; `StoreError` if that fails, and nothing changes."""

        def apply(content: _Content) -> _Content:
            rows = dict(content.properties)
            properties = change(rows.pop(account, _DEFAULT))
            if properties != _DEFAULT:
                rows[account] = properties
            return msgspec.structs.replace(content, version=VERSION, properties=rows)

        await self._change(apply)

    def policies(self, queue: str) -> Sequence[Policy]:
        """Return the stored access policies of a queue, none by default.

        They end with the queue: a later one of the same name has none.
        """
        found = self._content.policies.get(queue)
        return found if found and self._stands(self._content, queue) else ()

    async def set_policies(self, queue: str, policies: Sequence[Policy]) -> None:
        """Store the policies of a queue, and drop those of deleted queues.

        Raises `QueueNotFound`, or `StoreError` if that fails; then nothing changes.
        """

        def apply(content: _Content) -> _Content:
            number = self._made(queue)
            if number is None:
                raise QueueNotFound("there is no such queue")
            rows = {name: kept for name, kept in content.policies.items() if self._stands(content, name)}
            rows.pop(queue, None)
            if policies:
                rows[queue] = tuple(policies)
            made = {name: content.made.get(name, 0) for name in rows} | ({queue: number} if policies else {})
            return msgspec.structs.replace(content, version=VERSION, policies=rows, made=made)

        await self._change(apply)

    def _stands(self, content: _Content, queue: str) -> bool:
        return self._made(queue) == content.made.get(queue, 0)

    async def _change(self, apply: Callable[[_Content], _Content]) -> None:
        # A cancelled caller must not leave the file ahead of the memory.
        task = asyncio.create_task(self._write(apply), name="write the Azure endpoint's records")
        self._writing[task] = None
        task.add_done_callback(self._writing.pop)
        await asyncio.shield(task)

    async def _write(self, apply: Callable[[_Content], _Content]) -> None:
        async with self._lock:
            content = apply(self._content)
            if self._path is not None:
                await asyncio.to_thread(_replace, self._path, content)
            self._content = content


class NoRecords(JsonRecords):
    """No records: the queues are in a shared store, and other bridges would not see a file."""

    def __init__(self) -> None:
        super().__init__(None, lambda _: None)

    async def change_properties(self, account: str, change: Callable[[ServiceProperties], ServiceProperties]) -> None:
        """Raise `Unsupported`."""
        raise Unsupported("Service properties cannot be stored if several bridges share the queues")

    async def set_policies(self, queue: str, policies: Sequence[Policy]) -> None:
        """Raise `Unsupported`."""
        raise Unsupported("Stored access policies cannot be stored if several bridges share the queues")


def _read(path: pathlib.Path) -> _Content:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return _Content()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}; the queues are not affected") from None
    try:
        content = msgspec.json.decode(raw, type=_Content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StoreDamaged(
            f"{path} was not written by the Azure Queue endpoint; the queues are not affected. Restore a "
            "copy of it, or move it away: service properties and access policies are then those of a new "
            "account"
        ) from None
    if content.version > VERSION:
        raise StoreDamaged(f"{path} was written by a newer release (version {content.version}); use that one")
    return content


def _replace(path: pathlib.Path, content: _Content) -> None:
    raw = msgspec.json.format(msgspec.json.encode(content), indent=1)
    draft = path.with_name(path.name + ".new")
    try:
        make_folder(path.parent)
        draft.unlink(missing_ok=True)
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; existing data is safe") from None


RULES_MAX = 5
ORIGINS_MAX = 64
LITERAL_HEADERS_MAX = 64
PREFIXED_HEADERS_MAX = 2
TEXT_MAX = 256
DAYS_MAX = 365
AGE_S_MAX = 2**31 - 1


class Retention(msgspec.Struct, frozen=True):
    """How many days something is kept, 1 to 365; None is forever."""

    days: int | None = None


class Logging(msgspec.Struct, frozen=True):
    """Which requests are logged; stored without an effect."""

    delete: bool = False
    read: bool = False
    write: bool = False
    retention: Retention = Retention()


class Metrics(msgspec.Struct, frozen=True):
    """Whether metrics are kept, and those of each operation; stored without an effect."""

    enabled: bool = False
    include_apis: bool | None = None
    retention: Retention = Retention()


class ServiceProperties(msgspec.Struct, frozen=True):
    """The service properties of an account; only the CORS rules have an effect, clients compare the others."""

    logging: Logging = Logging()
    hour: Metrics = Metrics()
    minute: Metrics = Metrics()
    cors: tuple[CorsRule, ...] = ()


_DEFAULT = ServiceProperties()


def update_properties(before: ServiceProperties, raw: bytes) -> ServiceProperties:
    """Return ``before`` changed by the body of Set Queue Service Properties; what it does not name stays.

    Raises `AzureError`: ``InvalidXmlDocument``, ``MissingRequiredXmlNode``, ``UnsupportedXmlNode`` or
    ``InvalidXmlNodeValue``.
    """
    root = xml.parse(raw)
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


def render_properties(properties: ServiceProperties) -> bytes:
    """Return the answer to Get Queue Service Properties."""
    logging = properties.logging
    parts = [
        f"{xml.DECLARATION}<StorageServiceProperties><Logging><Version>1.0</Version>",
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


def _logging(element: xml.Element) -> Logging:
    _check_version(element)
    return Logging(
        delete=_flag(element, "Delete"),
        read=_flag(element, "Read"),
        write=_flag(element, "Write"),
        retention=_retention(element),
    )


def _metrics(element: xml.Element) -> Metrics:
    _check_version(element)
    enabled = _flag(element, "Enabled")
    return Metrics(
        enabled=enabled, include_apis=_flag(element, "IncludeAPIs") if enabled else None, retention=_retention(element)
    )


def _retention(element: xml.Element) -> Retention:
    policy = element.required("RetentionPolicy")
    return Retention(_number(policy, "Days", 1, DAYS_MAX)) if _flag(policy, "Enabled") else Retention()


def _rules(element: xml.Element) -> tuple[CorsRule, ...]:
    if len(element.children) > RULES_MAX or any(each.name != "CorsRule" for each in element.children):
        raise AzureError("InvalidXmlDocument")
    return tuple(_rule(each) for each in element.children)


def _rule(element: xml.Element) -> CorsRule:
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
        # The names are sent as headers.
        and all(char.isascii() and (char.isalnum() or char in "!#$%&'*+-.^_`|~") for name in names for char in name)
    )


def _texts(element: xml.Element, name: str, fit: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    found = tuple(text.strip() for text in element.required(name).text.split(",") if text.strip())
    if not fit(found) or any(len(text) > TEXT_MAX for text in found):
        raise xml.wrong(name)
    return found


def _check_version(element: xml.Element) -> None:
    if element.required("Version").text.strip() != "1.0":
        raise xml.wrong("Version")


def _flag(element: xml.Element, name: str) -> bool:
    text = element.required(name).text.strip().lower()
    if text not in ("true", "false"):
        raise xml.wrong(name)
    return text == "true"


def _number(element: xml.Element, name: str, low: int, high: int) -> int:
    text = element.required(name).text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and low <= int(text) <= high):
        raise xml.wrong(name)
    return int(text)


def _word(flag: bool) -> str:
    return "true" if flag else "false"


def _list(texts: Sequence[str]) -> str:
    return xml.escape(",".join(texts))


def _kept(retention: Retention) -> str:
    if retention.days is None:
        return "<RetentionPolicy><Enabled>false</Enabled></RetentionPolicy>"
    return f"<RetentionPolicy><Enabled>true</Enabled><Days>{retention.days}</Days></RetentionPolicy>"


POLICIES_MAX = 5
ID_MAX = 64
LETTERS = "raup"


class Policy(msgspec.Struct, frozen=True):
    """One policy; the signature must have the fields that it leaves out."""

    id: str
    start: datetime.datetime | None = None
    expiry: datetime.datetime | None = None
    permissions: str | None = None
    """Letters of ``raup``: read, add, update, process."""


def parse_policies(raw: bytes) -> tuple[Policy, ...]:
    """Parse the body of Set Queue ACL; an empty one has no policies.

    Raises `AzureError`: ``InvalidXmlDocument``, ``MissingRequiredXmlNode``, ``UnsupportedXmlNode`` or
    ``InvalidXmlNodeValue``.
    """
    if not raw.strip():
        return ()
    root = xml.parse(raw)
    if root.name != "SignedIdentifiers" or len(root.children) > POLICIES_MAX:
        raise AzureError("InvalidXmlDocument")
    found = tuple(_policy(each) for each in root.children)
    if len({policy.id for policy in found}) < len(found):
        raise xml.wrong("Id")
    return found


def render_policies(policies: Sequence[Policy]) -> bytes:
    """Return the answer to Get Queue ACL."""
    parts = [xml.DECLARATION, "<SignedIdentifiers>"]
    for policy in policies:
        parts.append(f"<SignedIdentifier><Id>{xml.escape(policy.id)}</Id><AccessPolicy>")
        if policy.start is not None:
            parts.append(f"<Start>{write_iso(policy.start)}</Start>")
        if policy.expiry is not None:
            parts.append(f"<Expiry>{write_iso(policy.expiry)}</Expiry>")
        if policy.permissions is not None:
            parts.append(f"<Permission>{policy.permissions}</Permission>")
        parts.append("</AccessPolicy></SignedIdentifier>")
    parts.append("</SignedIdentifiers>")
    return "".join(parts).encode()


def _policy(element: xml.Element) -> Policy:
    if element.name != "SignedIdentifier":
        raise AzureError("UnsupportedXmlNode", details={"XmlNodeName": element.name})
    id_ = element.required("Id")
    if not 1 <= len(id_.text) <= ID_MAX:
        raise xml.wrong("Id")
    given = element.child("AccessPolicy")
    if given is None:
        return Policy(id_.text)
    letters = given.child("Permission")
    permissions = letters.text.strip() if letters is not None else ""
    if set(permissions) - set(LETTERS):
        raise xml.wrong("Permission")
    # In a fixed order: clients compare.
    ordered = "".join(letter for letter in LETTERS if letter in permissions)
    return Policy(id_.text, _policy_time(given, "Start"), _policy_time(given, "Expiry"), ordered or None)


def _policy_time(policy: xml.Element, name: str) -> datetime.datetime | None:
    element = policy.child(name)
    text = element.text.strip() if element is not None else ""
    if not text:
        return None
    moment = read_iso(text)
    if moment is None:
        raise xml.wrong(name)
    return moment
