"""A script without an event loop: `python examples/blocking.py [URL]` puts two orders and handles what it finds.

A worker that waits for work is a `Listener`; `BlockingStore` is for scripts, web applications and Celery tasks that put
and look, from any thread.
"""

import sys

from queuebell import BlockingStore

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8470"
QUEUE = "billing/orders"

# For a queue in another store: BlockingStore("postgres://...", bridge=URL) tells the bridge of every put.
with BlockingStore(URL) as store:
    store.put(QUEUE, ["order 1", "order 2"])
    for message in store.receive(QUEUE, limit=2, visibility_s=30).messages:
        order = message.body.decode()
        if order.endswith("1"):
            renewed = store.extend(QUEUE, message, visibility_s=60)  # work that takes longer than its lease
            assert renewed is not None, "the lease was lost: somebody else may have the message"
            done = store.delete(QUEUE, renewed)
            print(f"{order}: charged" if done else f"{order}: charged, and may be again")
        else:
            store.release(QUEUE, message, after_ms=60_000)
            print(f"{order}: later")
    depth = store.depth(QUEUE)
    assert depth is not None
    print("left:", depth.visible + depth.invisible)
