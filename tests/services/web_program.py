"""A web application on uvicorn with a listener in it: ``python web_program.py good|refused|breaks BRIDGE``."""

from __future__ import annotations

import asyncio
import sys

import uvicorn
from fastapi import FastAPI, Request

from listeners import Listener, Message, Pool, lifespan


class Broken:
    """A rule that raises."""

    def tasks(self, depth: int) -> int:
        """Be no rule."""
        raise ZeroDivisionError("no such rule")


def say(line: str) -> None:
    """Tell the test."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def handler(message: Message) -> None:
    """Work until standard input says go."""
    say(f"start {message.text()}")
    await asyncio.to_thread(sys.stdin.readline)
    say(f"done {message.text()}")


form, bridge = sys.argv[1:]
options = {"scaling": Broken(), "batch": 1, "pool": Pool(4)} if form == "breaks" else {}
working = Listener(bridge, "billing/orders", handler, name="web", grace=600, **options)
parts = [Listener("memory:x", "billing/parcels", handler, bridge="ftp://x")] if form == "refused" else []
app = FastAPI(lifespan=lifespan(working, *parts))


@app.get("/")
async def mode(request: Request) -> str:
    """Tell how the listener stands."""
    return working.state().mode


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=0)
