"""A web application that puts work and handles it: `uvicorn --app-dir examples fastapi_app:app`.

Its listener starts and stops with it, and signals stay uvicorn's: SIGTERM has requests and handlers finish.
`BRIDGE` in the environment is the bridge's address. Then: `curl -X POST localhost:8000/orders/17`. The code of this
application is in `examples/fastapi_app.py`.
"""

import asyncio
import os

from fastapi import FastAPI, Request

from queuebell import Listener, Message, lifespan, open_store

URL = os.environ.get("BRIDGE", "http://127.0.0.1:8470")


async def charge(message: Message) -> None:
    print(f"charging order {message.text()}", flush=True)
    await asyncio.sleep(0.5)
    print(f"charged order {message.text()}", flush=True)


worker = Listener(URL, "billing/orders", charge, grace=20)
app = FastAPI(lifespan=lifespan(worker, store=open_store(URL)))


@app.post("/orders/{number}", status_code=202)
async def order(number: int, request: Request) -> dict[str, int]:
    await request.state.store.put("billing/orders", [str(number)])
    return {"accepted": number}


@app.get("/worker")
async def state() -> dict[str, str]:
    return {"mode": worker.state().mode}
