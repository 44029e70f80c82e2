"""What may happen next in a world, and how to tell it."""

from __future__ import annotations

from typing import Any

from queuebell.bridge.contract.wire import ListenerHeartbeat, Wake
from tests.exploration.node import Link, Node
from tests.exploration.store import UNPUT

Step = tuple[str, int]

UNFAIR = frozenset({"finish"})
"""What may never happen, as far as the property goes."""
FAULTS = frozenset(
    {
        "crash", "revive", "cut", "restart", "lose", "lose_up", "lose_down", "error", "unknown", "hang", "retry",
        "later", "lapse", "stop", "forget", "deafen", "publish_fails",
    }
)  # fmt: skip


class Options:
    """The part of `World` that lists and tells steps."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    # -- what may happen ---------------------------------------------------------------------------------------------

    def steps(self, *, faults: bool = True) -> list[Step]:
        """Return everything that can happen now, but for time that passes."""
        out: list[Step] = []
        plan, left = self.plan, self.left
        for message in self.messages:
            if message.state == UNPUT and not self._putting(message.id):
                out.append(("put", message.id))
                break
        if self.triggers:
            out.append(("trigger", 0))
        self._producer_steps(out, faults)
        for i, link in enumerate(self.links):
            self._link_steps(i, link, out, faults)
        settling: set[tuple[int, int, str]] = set()
        for request in self.requests:
            if request.status == "sent" and not request.abandoned:
                if request.kind != "receive":
                    # One settlement at a time, with the receipt that is newest when it leaves.
                    key = (request.node, request.life, request.queue)
                    if key in settling:
                        continue
                    settling.add(key)
                if not self.nodes[request.node].hung:
                    out.append(("store", request.id))
                    if faults and left["error"] and request.kind == "receive":
                        out.append(("error", request.id))
            elif request.status == "answered":
                out.append(("answer", request.id))
            if request.kind != "receive" and not request.abandoned:
                settling.add((request.node, request.life, request.queue))
            if faults and left["unknown"] and request.kind == "receive" and not request.abandoned:
                out.append(("unknown", request.id))
        if self.store.calls:
            out.append(("write", 1))
            if plan.groups and len(self.store.calls) > 1:
                out.append(("write", len(self.store.calls)))
        if self.store.outcomes:
            out.append(("hear", 0))
        for node in self.nodes:
            self._node_steps(node, out, faults)
        if faults:
            if left["restart"]:
                out.append(("restart", 0))
            if left["forget"] and any(work.forgettable for work in self.scheduler.pending.by_queue.values()):
                out.append(("forget", 0))
        return out

    def _link_steps(self, i: int, link: Link, out: list[Step], faults: bool) -> None:
        left = self.left
        if link.bridge_open:
            if link.up:
                out.append(("up", i))
                if faults and left["lose_up"]:
                    out.append(("lose_up", i))
            if link.flush:
                out.append(("flush", i))
            if link.cut or not link.node_open:
                out.append(("lost", i))
        if link.node_open:
            if link.down:
                out.append(("down", i))
                if faults and left["lose"] and isinstance(link.down[0], Wake):
                    out.append(("lose", i))
                if faults and left["lose_up"]:
                    out.append(("lose_down", i))
            if link.cut or (not link.bridge_open and not link.down):
                out.append(("notice", i))
        if faults and left["deafen"] and link.node_open and link.bridge_open and not link.deaf:
            out.append(("deafen", i))
        if faults and left["cut"] and link.node_open and link.bridge_open and not link.cut:
            out.append(("cut", i))

    def _node_steps(self, node: Node, out: list[Step], faults: bool) -> None:
        left, number = self.left, node.number
        if not node.alive:
            if node.life == 0:
                out.append(("join", number))
            elif faults and left["revive"] and not node.said_bye:
                out.append(("revive", number))
            return
        if node.link is None and not node.said_bye:
            out.append(("connect", number))
        if node.may_bye and not node.said_bye:
            out.append(("bye", number))
        for held in node.held:
            if held.running:
                out.append(("finish", number * 1000 + held.token))
                if faults:
                    out.extend((kind, number * 1000 + held.token) for kind in ("retry", "later", "lapse") if left[kind])
        if faults:
            out.extend((kind, number) for kind in ("crash", "hang", "stop") if left[kind] and not node.said_bye)

    def tell(self, step: Step) -> str:
        """Return a line about a step that is about to be taken."""
        kind, what = step
        about = f"{kind} {what}"
        if kind in ("up", "lose_up"):
            link = self.links[what]
            about = f"{kind} {link.node}: {_brief(link.up[0])}"
        elif kind in ("down", "lose_down", "lose"):
            link = self.links[what]
            about = f"{kind} {link.node}: {_brief(link.down[0])}"
        elif kind in ("flush", "lost", "notice", "cut"):
            about = f"{kind} {self.links[what].node}"
        elif kind in ("store", "answer", "unknown", "error"):
            request = self._request(what)
            about = f"{kind} {request.node}: {request.kind} {[m for m, _ in request.taken]} msg {request.message}"
        elif kind in ("finish", "retry", "later", "lapse"):
            held = next(held for held in self.nodes[what // 1000].held if held.token == what % 1000)
            about = f"{kind} {what // 1000}: message {held.message}"
        elif kind == "hear":
            about = f"hear {[(lv.visible, lv.rose) for lv in self.store.outcomes[0].backlogs]}"
        return f"{self.now - 1000:8.3f} {about}"


def _brief(frame: object) -> str:
    fields = {k: getattr(frame, k) for k in ("gen", "free", "reason", "size", "covered") if hasattr(frame, k)}
    if isinstance(frame, ListenerHeartbeat):
        beat = next(iter(frame.queues.values()))
        fields = {"gen": beat.gen, "covered": beat.covered, "free": beat.free, "receiving": beat.receiving_ms}
    carried = getattr(frame, "messages", None)
    if carried:
        fields["messages"] = [int(message.id) for message in carried]
    return f"{type(frame).__name__}({', '.join(f'{k}={v}' for k, v in fields.items())})"
