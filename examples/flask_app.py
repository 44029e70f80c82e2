"""A Flask application that puts work: `flask --app examples/flask_app.py run`.

Then: `curl -X POST localhost:5000/orders/17`. One `BlockingStore` is for all threads, and each process that gunicorn
forks has a connection of its own. The worker is a program beside it, as in `examples/worker.py`. `BRIDGE` in the
environment is the bridge's address.
"""

import os

from flask import Flask

from queuebell import BlockingStore

app = Flask(__name__)
store = BlockingStore(os.environ.get("BRIDGE", "http://127.0.0.1:8470"), timeout=5)


@app.post("/orders/<int:number>")
def order(number: int) -> tuple[dict[str, int], int]:
    store.put("billing/orders", [f"order {number}"])
    return {"accepted": number}, 202


@app.get("/orders")
def waiting() -> dict[str, int]:
    depth = store.depth("billing/orders")
    return {"waiting": depth.visible if depth else 0}
