"""A gateway that takes orders in: `python examples/ingestion.py [URL] [NUMBER_OF_ORDERS]`.

Each order is put under its own number, so that it may be sent again after a lost answer, and a 429 is waited for. Plain
HTTP, for any language can do the same; from Python `PublishingQueue.put_once` does it all.
"""

import random
import sys
import time
import urllib.error
import urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8470"
ORDERS = int(sys.argv[2]) if len(sys.argv) > 2 else 3


def put(id_: str, body: bytes, patience_s: float = 60.0) -> str:
    """Put a message once; what fails in passing is sent again, the same id and the same body."""
    request = urllib.request.Request(f"{URL}/v1/queues/billing/orders/messages/{id_}", body, method="PUT")
    give_up, pause = time.monotonic() + patience_s, 0.1
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return "taken" if answer.status == 201 else "known"
        except urllib.error.HTTPError as error:
            if error.code not in (429, 500, 503, 507):
                raise
            asked = float(error.headers.get("Retry-After", 0))
        except OSError:  # no answer, or none in time: perhaps it was put, perhaps not
            asked = 0.0
        wait = asked + pause * random.random()
        if time.monotonic() + wait > give_up:
            raise TimeoutError(f"order {id_} was not taken in {patience_s:g} s; nothing is lost: send it again")
        time.sleep(wait)
        pause = min(2 * pause, 5.0)


for number in [*range(1, ORDERS + 1), ORDERS]:
    print(f"order {number}: {put(f'order-{number}', b'order %d' % number)}")
