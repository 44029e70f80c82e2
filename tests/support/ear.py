"""A session's outlet that keeps what the bridge says."""

from __future__ import annotations

from queuebell.bridge.contract.wire import DownFrame


class Ear:
    """Hears everything; `closed` is why its session was ended (`queuebell.bridge.service.channels.base.Outlet`)."""

    kind = "test"

    def __init__(self) -> None:
        self.said: list[DownFrame] = []
        self.closed: str | None = None

    def writable(self) -> bool:
        return True

    def send(self, frame: DownFrame) -> None:
        self.said.append(frame)

    def close(self, code: int, reason: str) -> None:
        self.closed = reason
