"""Workers as pods of a Deployment or StatefulSet: its replicas are set by the API server's ``scale`` subresource.

Only the number is ours: which pod ends is the controller's choice, and nobody knows which is busy, so that they end
only while the queue is quiet. Pods go on when the scaler ends, and the next one finds them. What others have added to
the number since stays; what they took off has ended, and is followed by a pause before anything is started anew, so
that two that disagree do not fight. A container that fails is started again by the kubelet: none ends for being late.

A pod is ready when its workload's ``readyReplicas`` say so. Every write names the version that it was made from, so
that of two writers one is refused and looks anew.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import pathlib
import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import aiohttp
import msgspec

from bridge.contract.errors import ConfigurationError, QueuebellError
from listeners.core.trouble import Repeated
from listeners.scaling.actuators.base import Hears, NotSeen, StartFailed
from listeners.scaling.actuators.watch import Watch

log = logging.getLogger("queuebell.scaler")

ACCOUNT: Final = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
MERGE_PATCH: Final = "application/merge-patch+json"
ANSWER_BYTES: Final = 4 * 1024 * 1024
CALL_S: Final = 10.0
EVERY_S: Final = 5.0
AGAIN_S: Final = 5.0
CONFLICTS: Final = 5
"""How often a write is made anew because somebody else wrote in between."""
PAUSE_S: Final = 1.0
PAUSE_CAP_S: Final = 10.0
FOUND: Final = 200
REPLICAS_MAX: Final = 100_000
"""More than a cluster has pods; each is remembered."""
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Meta(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815 - the API's words


class _Numbers(msgspec.Struct):
    replicas: Annotated[int, msgspec.Meta(ge=0, le=REPLICAS_MAX)] = 0
    readyReplicas: Annotated[int, msgspec.Meta(ge=0)] = 0  # noqa: N815


class _Scaled(msgspec.Struct):
    """What counts of a Scale, and of a workload."""

    metadata: _Meta
    spec: _Numbers = msgspec.field(default_factory=_Numbers)
    status: _Numbers = msgspec.field(default_factory=_Numbers)


class Refused(QueuebellError):
    """The API server did not do it: ``answer`` is its status, 0 where there was none."""

    def __init__(self, text: str, answer: int = 0) -> None:
        super().__init__(text)
        self.answer = answer

    @property
    def unknown(self) -> bool:
        """Whether it may have been done all the same."""
        return self.answer == 0 or self.answer >= 500


class KubernetesActuator:
    """Sets the replicas of the workload ``name``; ``namespace`` is the scaler's own by default.

    ``api`` is the API server's address (default: as pods are told it), ``account`` the directory with ``token``,
    ``ca.crt`` and ``namespace``, whose files are read anew for every call. ``within_s`` is how long a change may take
    with all its tries, ``every_s`` how often it is looked while any pod runs. Raises `ConfigurationError` for what can
    never work.
    """

    outlives = True
    patient = True

    def __init__(
        self,
        name: str,
        *,
        kind: Literal["deployment", "statefulset"] = "deployment",
        namespace: str | None = None,
        api: str | None = None,
        account: pathlib.Path = ACCOUNT,
        environment: Mapping[str, str] | None = None,
        within_s: float = 30.0,
        every_s: float = EVERY_S,
    ) -> None:
        for key, given in ((kind, name), ("namespace", namespace)):
            if given is not None and not NAME.fullmatch(given):
                raise ConfigurationError(f"{key}: {given!r} is no name of Kubernetes (small letters, digits, - and .)")
        self._kind, self._name = kind, name
        self._account = account
        self._namespace = namespace or self._own_namespace()
        self._api = (api or _address(os.environ if environment is None else environment)).rstrip("/")
        self._within_s = within_s
        self._http: aiohttp.ClientSession | None = None
        self._trust: tuple[bytes, ssl.SSLContext] | None = None
        self._ids: list[str] = []
        self._ready: set[str] = set()
        self._count = 0
        self._others = 0
        """Replicas that somebody else has added since."""
        self._unsure: tuple[int, list[str]] | None = None
        """A number that may have been written, and whom it ends; of one that starts nobody is known."""
        self._seen = False
        """Whether the number was ever seen."""
        self._turn = asyncio.Lock()
        self._hears: Hears | None = None
        self._watch = Watch(str(self), self.look, every_s=every_s, wanted=self._is_looked_at)
        self._closed = False
        self.unseen: str | None = None

    def __str__(self) -> str:
        return f"{self._kind} {self._namespace}/{self._name}"

    async def open(self, hears: Hears) -> None:
        """Find the replicas that there are already."""
        self._hears = None
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CALL_S), trust_env=False)
        try:
            await self.look()
        except NotSeen as unseen:
            log.warning("%s: it cannot be seen how many replicas there are: %s", self, unseen)
        self._hears = hears
        self._watch.begin()

    async def start(self, count: int) -> list[str]:
        """Add so many replicas to what there is; ready is told of when the workload says so."""
        async with self._turn:
            try:
                async with asyncio.timeout(self._within_s):
                    return await self._change(count, [])
            except Refused as refused:
                raise StartFailed(str(refused)) from refused
            except TimeoutError:
                raise StartFailed(f"{self}: not done within {self._within_s:g} s") from None

    async def stop(self, ids: Sequence[str]) -> None:
        """Take so many replicas off, tried until it is done."""
        failures = Repeated()
        while not self._closed:
            async with self._turn:
                ending = [number for number in self._ids if number in set(ids)]
                if not ending:
                    return
                why = f"{self}: not done within {self._within_s:g} s"
                try:
                    async with asyncio.timeout(self._within_s):
                        await self._change(0, ending)
                    return
                except Refused as refused:
                    why = str(refused)
                except TimeoutError:
                    pass
                if failures.failed(asyncio.get_running_loop().time()):
                    log.error("workers are not ended: %s; it is repeated", why)
            await asyncio.sleep(AGAIN_S)

    async def look(self) -> None:
        """Ask how many replicas there are, and, while some are not ready, how many are."""
        try:
            await self._look()
        except NotSeen as unseen:
            self.unseen = str(unseen)
            raise
        self.unseen = None

    async def _look(self) -> None:
        async with self._turn:
            try:
                async with asyncio.timeout(self._within_s):
                    _, found = await self._see()
                    self._tell_found(found)
                    if self._hears is not None and not self._ready.issuperset(self._ids):
                        workload = await self._ask("GET", "")
                        self._tell_ready(workload.status.readyReplicas)
            except Refused as refused:
                raise NotSeen(str(refused)) from refused
            except TimeoutError:
                raise NotSeen(f"{self}: no answer within {self._within_s:g} s") from None

    def running(self) -> list[str]:
        """Return an id for each replica that was started or found, without those that others have added."""
        return list(self._ids)

    async def close(self) -> None:
        """Let go of them: they go on."""
        self._closed = True
        await self._watch.close()
        http, self._http = self._http, None
        if http is None:
            return
        try:
            async with self._turn:  # what is being written is written
                pass
        finally:
            await http.close()

    # The number -----------------------------------------------------------------------------------------------------

    def _is_looked_at(self) -> bool:
        return bool(self._ids) or self._unsure is not None or not self._seen

    async def _change(self, more: int, ending: list[str]) -> list[str]:
        """Write another number, from what there is now; anew if somebody else wrote in between."""
        for left in reversed(range(CONFLICTS)):
            first = not self._seen
            scale, found = await self._see()
            if more and len(found) == more and not first:
                return found  # an earlier try was done although nobody said so
            self._tell_found(found)
            if more and found:
                raise Refused(f"{self}: has {len(found)} replicas that were not known; it is counted anew", 409)
            ending = [number for number in ending if number in self._ids]
            if not more and not ending:
                return []  # has been done by now
            wanted = max(0, scale.spec.replicas + more - len(ending))
            body = {"metadata": {"resourceVersion": scale.metadata.resourceVersion}, "spec": {"replicas": wanted}}
            self._unsure = (wanted, ending)
            try:
                await self._ask("PATCH", "/scale", body)
            except Refused as refused:
                if not refused.unknown:
                    self._unsure = None
                if refused.answer != 409 or not left:
                    raise
                continue
            self._unsure = None
            begun = self._take_on(more)
            self._ended(ending, "told to end")
            return begun
        raise AssertionError("the last try returns or raises")

    async def _see(self) -> tuple[_Scaled, list[str]]:
        """Ask for the number, and take over what has become of it; return it, and the ids of what was not known."""
        scale = await self._ask("GET", "/scale")
        actual, unsure = scale.spec.replicas, self._unsure
        self._unsure = None
        if not self._seen:
            self._seen = True
            return scale, self._take_on(actual)
        changed = actual - len(self._ids) - self._others
        if unsure is not None and changed and actual == unsure[0]:
            self._ended(unsure[1], "told to end")
            found = self._take_on(max(0, changed))
            self._others = actual - len(self._ids)
            return scale, found
        if changed > 0:
            self._others += changed
            log.info("%s: somebody else has added %d replicas; they are left alone", self, changed)
        elif changed < 0:
            taken = -changed - min(self._others, -changed)
            self._others -= -changed - taken
            why = f"somebody else has set the replicas of {self} to {actual}"
            # A failure to the rules, whatever it was to the pods: who is at odds with another waits longer each time.
            self._ended(self._ids[len(self._ids) - taken :], why, code=1)
        return scale, []

    def _take_on(self, count: int) -> list[str]:
        begun = [str(self._count + step) for step in range(1, count + 1)]
        self._count += count
        self._ids += begun
        return begun

    def _tell_found(self, ids: list[str]) -> None:
        if ids and self._hears is not None:
            self._hears.found(ids)

    def _ended(self, ids: list[str], why: str, code: int | None = None) -> None:
        gone = [number for number in self._ids if number in ids]
        self._ids = [number for number in self._ids if number not in ids]
        self._ready.difference_update(gone)
        if self._hears is not None:
            for number in gone:
                self._hears.ended(number, code, why)

    def _tell_ready(self, count: int) -> None:
        if self._hears is None:
            return
        for number in self._ids[:count]:
            if number not in self._ready:
                self._ready.add(number)
                self._hears.ready(number)

    # The API server -------------------------------------------------------------------------------------------------

    async def _ask(self, method: str, part: str, body: dict[str, Any] | None = None) -> _Scaled:
        """Return the answer. A token that was replaced is read anew once; who is told to wait does, and asks again."""
        path = f"/apis/apps/v1/namespaces/{self._namespace}/{self._kind}s/{self._name}{part}"
        renewed = False
        while True:
            status, wait_s, raw = await self._call(method, path, body)
            if status == FOUND:
                try:
                    return msgspec.json.decode(raw, type=_Scaled)
                except UNREADABLE as error:
                    raise Refused(f"{self}: the API server's answer is none of Kubernetes: {error}") from error
            if status == 401 and not renewed:
                renewed = True  # it may have been replaced between our reading and the server's
            elif status == 429 or (status == 503 and method == "GET"):  # of a write nobody knows after 503
                await asyncio.sleep(wait_s)
            else:
                raise Refused(self._why(status, method, part, raw), status)

    async def _call(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, float, bytes]:
        http = self._http
        if http is None:
            raise Refused(f"{self}: the scaler stops")
        headers = {"Accept": "application/json", "Authorization": f"Bearer {self._token()}"}
        if body is not None:
            headers["Content-Type"] = MERGE_PATCH
        try:
            async with http.request(
                method,
                f"{self._api}{path}",
                data=None if body is None else msgspec.json.encode(body),
                headers=headers,
                ssl=self._trusted(),
                allow_redirects=False,
            ) as answer:
                raw = bytearray()
                async for piece in answer.content.iter_chunked(65536):
                    raw += piece
                    if len(raw) > ANSWER_BYTES:
                        raise Refused(f"{self}: the API server's answer is longer than {ANSWER_BYTES} bytes")
                return answer.status, _pause(answer.headers.get("Retry-After")), bytes(raw)
        except (aiohttp.ClientError, OSError) as error:
            why = str(error) or "not in time"
            raise Refused(f"{self}: no answer from the API server at {self._api}: {why}") from error

    def _why(self, status: int, method: str, part: str, raw: bytes) -> str:
        try:
            said = str(msgspec.json.decode(raw)["message"])[:300]
        except (*UNREADABLE, KeyError, TypeError):
            said = raw[:100].decode("utf-8", "backslashreplace")
        if status == 404:
            return f"{self}: there is no such {self._kind} in this namespace"
        if status == 401:
            return f"{self}: the API server does not know the token in {self._account}: {said}"
        if status == 403:
            verb = {"GET": "get", "PATCH": "patch"}[method]
            return (
                f"{self}: the service account may not do this. A Role of the namespace needs a rule with apiGroups "
                f'["apps"], resources ["{self._kind}s{part}"] and verbs ["{verb}"]: {said}'
            )
        return f"{self}: the API server answered {status}: {said}"

    def _read(self, file: str) -> str:
        try:
            return (self._account / file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise Refused(f"{self}: {self._account / file} cannot be read: {why}", 401) from error

    def _token(self) -> str:
        token = self._read("token").strip()
        if not token.isascii() or not token.isprintable():  # no header could carry it
            raise Refused(f"{self}: {self._account / 'token'} holds no token", 401)
        return token

    def _trusted(self) -> ssl.SSLContext | bool:
        """Return who may sign the API server's certificate: the newest file, made anew only when it has changed."""
        if self._api.startswith("http://"):
            return True
        pem = self._read("ca.crt").encode()
        if self._trust is None or self._trust[0] != pem:
            try:
                self._trust = (pem, ssl.create_default_context(cadata=pem.decode()))
            except (ssl.SSLError, ValueError) as error:
                raise Refused(f"{self}: {self._account / 'ca.crt'} holds no certificate: {error}", 401) from error
        return self._trust[1]

    def _own_namespace(self) -> str:
        try:
            name = (self._account / "namespace").read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise ConfigurationError(
                f"namespace: is not told by {self._account / 'namespace'}; outside of a pod, or without a service "
                "account's token, name one"
            ) from None
        if not NAME.fullmatch(name):
            raise ConfigurationError(f"namespace: {self._account / 'namespace'} holds no name of Kubernetes")
        return name


def _address(environment: Mapping[str, str]) -> str:
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigurationError(
            "actuator: kubernetes works in a pod only: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"
        )
    try:
        host = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        pass  # a name
    return f"https://{host}:{port}"


def _pause(told: str | None) -> float:
    return max(0.1, min(float(told), PAUSE_CAP_S)) if told is not None and told.isdecimal() else PAUSE_S
