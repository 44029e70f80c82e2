"""A test of a handler, with its queue and its retries, and no server: `python -m pytest examples/test_handler.py`.

`pytest_plugins` stands in the `conftest.py` of a real project.
"""

from queuebell import Bury, Message
from queuebell.testing import Rehearsal

pytest_plugins = ["queuebell.pytest_plugin"]


class Bank:
    """Refuses its first customers, as a bank does."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.charged: list[str] = []

    async def charge(self, message: Message) -> None:
        """Charge an order."""
        if message.text() == "order 0":
            raise Bury("no such order")
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the bank does not answer")
        self.charged.append(message.text())


def test_a_bank_that_is_away_is_asked_again(rehearsal: Rehearsal) -> None:
    bank = Bank(failures=2)
    rehearsal.listen("billing/orders", bank.charge)
    rehearsal.put("billing/orders", "order 17", "order 0")
    rehearsal.run_until_idle()
    assert bank.charged == []
    rehearsal.advance(60)  # no second of it is waited for
    assert bank.charged == ["order 17"]
    assert [burial.reason for burial in rehearsal.buried("billing/orders")] == ["no such order"]
