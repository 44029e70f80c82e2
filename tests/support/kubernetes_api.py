"""A stand-in for Kubernetes' API server: one workload, its ``scale``, and the rules that the real one enforces."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import pathlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.support.certificates import Authority

NAMESPACE = "work"
PATCHES = {
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
}
GRANTED = {("get", "scale"), ("patch", "scale"), ("get", "")}


class Cluster:
    """What it knows. ``account`` is the directory that a pod of it sees."""

    def __init__(self, account: pathlib.Path, name: str = "orders", kind: str = "deployment") -> None:
        self.account = account
        self.name, self.kind = name, kind
        self.url = ""
        self.replicas = 0
        self.ready: int | None = None
        """How many pods are ready, None for all."""
        self.version = 1
        self.token = ""
        self.granted = set(GRANTED)
        self.calls: list[str] = []
        self.writes: list[int] = []
        self.wrong: list[str] = []
        """What the real one would have refused as no request of a sane client."""
        self.before: list[Callable[[web.Request], web.StreamResponse | None]] = []
        """What happens to the next calls before they are looked at, one each."""
        self.after: list[Callable[[web.StreamResponse], web.StreamResponse]] = []
        """What becomes of the answers to the next writes that were done."""
        self.hangs = False
        self._over = asyncio.Event()

    def rotate(self, token: str, *, told: bool = True) -> None:
        """Have another token be good, and the file say so if ``told``."""
        self.token = token
        if told:
            (self.account / "token").write_text(token + "\n")

    def set(self, replicas: int) -> None:
        """Have somebody else set the number."""
        self.replicas = replicas
        self.version += 1

    def end(self) -> None:
        """Let go of calls that hang."""
        self._over.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer as the real one."""
        self.calls.append(f"{request.method} {request.path}")
        if self.hangs:
            await self._over.wait()
        if self.before and (answer := self.before.pop(0)(request)) is not None:
            return answer
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return said(401, "Unauthorized", "Unauthorized")
        head, workload, part = request.match_info["kinds"], request.match_info["name"], request.match_info["part"]
        verb = {"GET": "get", "PATCH": "patch"}.get(request.method)
        part = part.removeprefix("/")
        resource = f"{head}/{part}" if part else head
        if verb is None or part not in ("", "scale"):
            self.wrong.append(f"{request.method} {request.path}")
            return said(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        if (verb, part) not in self.granted:
            text = (
                f'{head}.apps "{workload}" is forbidden: User "system:serviceaccount:{NAMESPACE}:scaler" cannot {verb} '
                f'resource "{resource}" in API group "apps" in the namespace "{NAMESPACE}"'
            )
            return said(403, "Forbidden", text)
        if request.match_info["namespace"] != NAMESPACE or (head, workload) != (f"{self.kind}s", self.name):
            return said(404, "NotFound", f'{head}.apps "{workload}" not found')
        if verb == "get":
            return web.json_response(self._scale() if part else self._workload())
        return await self._patch(request)

    async def _patch(self, request: web.Request) -> web.StreamResponse:
        if request.content_type not in PATCHES:
            self.wrong.append(f"content type {request.content_type}")
            text = f"the body of the request was in an unknown format - accepted media types include: {sorted(PATCHES)}"
            return said(415, "UnsupportedMediaType", text)
        assert request.content_type == "application/merge-patch+json"
        body = await request.json()
        wanted = body.get("spec", {}).get("replicas", self.replicas)
        if not isinstance(wanted, int) or wanted < 0:
            self.wrong.append(json.dumps(body))
            text = f"spec.replicas: Invalid value: {wanted}: must be greater than or equal to 0"
            return said(422, "Invalid", text)
        version = body.get("metadata", {}).get("resourceVersion")
        if version is not None and version != str(self.version):
            text = (
                f'Operation cannot be fulfilled on {self.kind}s.apps "{self.name}": the object has been modified; '
                "please apply your changes to the latest version and try again"
            )
            return said(409, "Conflict", text)
        self.set(wanted)
        self.writes.append(wanted)
        answer: web.StreamResponse = web.json_response(self._scale())
        return self.after.pop(0)(answer) if self.after else answer

    def _meta(self) -> dict[str, Any]:
        return {"name": self.name, "namespace": NAMESPACE, "uid": "1-2-3", "resourceVersion": str(self.version)}

    def _scale(self) -> dict[str, Any]:
        # A number that is 0 is left out of a spec, as `omitempty` has it.
        spec = {"replicas": self.replicas} if self.replicas else {}
        status = {"replicas": self.replicas, "selector": f"app={self.name}"}
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": self._meta(),
            "spec": spec,
            "status": status,
        }

    def _workload(self) -> dict[str, Any]:
        ready = self.replicas if self.ready is None else min(self.ready, self.replicas)
        status: dict[str, Any] = {"observedGeneration": 3, "conditions": [{"type": "Available", "status": "True"}]}
        if self.replicas:
            status["replicas"] = self.replicas
        if ready:
            status["readyReplicas"] = ready
        spec = {"replicas": self.replicas, "selector": {"matchLabels": {"app": self.name}}, "template": {}}
        kind = {"deployment": "Deployment", "statefulset": "StatefulSet"}[self.kind]
        return {"kind": kind, "apiVersion": "apps/v1", "metadata": self._meta(), "spec": spec, "status": status}


def said(code: int, reason: str, message: str, **headers: str) -> web.Response:
    """Return a Status, which is how the API server refuses."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return web.json_response(body, status=code, headers={key.replace("_", "-"): each for key, each in headers.items()})


@contextlib.asynccontextmanager
async def cluster(folder: pathlib.Path, *, kind: str = "deployment", tls: bool = False) -> AsyncIterator[Cluster]:
    """Serve one on a free port; with ``tls`` by a certificate of its own authority, which the account names."""
    account = folder / "serviceaccount"
    account.mkdir(parents=True)
    each = Cluster(account, kind=kind)
    each.rotate("first")
    (account / "namespace").write_text(NAMESPACE)
    context = None
    if tls:
        authority = Authority(folder)
        (account / "ca.crt").write_bytes(authority.file.read_bytes())
        here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.certificate("api", here, usage=ExtendedKeyUsageOID.SERVER_AUTH))
    app = web.Application()
    app.router.add_route("*", "/apis/apps/v1/namespaces/{namespace}/{kinds}/{name}{part:.*}", each.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    each.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield each
    finally:
        each.end()
        await runner.cleanup()
        assert each.wrong == []
