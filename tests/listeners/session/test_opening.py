"""What a listener asks of its store before it opens it."""

from __future__ import annotations

import pytest

from bridge.contract.errors import ConfigurationError
from bridge.queues.base import BATCH_MAX, Capabilities
from bridge.queues.jetstream.store import JetStreamStore
from bridge.queues.postgres.store import PostgresStore
from bridge.queues.sqs.store import SqsStore
from listeners.session.opening import batch_max, check_client


class Strange:
    """A store of somebody else's, which says nothing of itself."""


class Many(Strange):
    """One that takes more messages a call."""

    capabilities = Capabilities(batch_max=500)  # type: ignore[assignment]

    def check_client(self) -> None:
        raise ConfigurationError("install the client")


@pytest.mark.parametrize(
    ("given", "store"),
    [("postgres://db/orders", PostgresStore), ("sqs://eu-central-1", SqsStore), ("nats://bus", JetStreamStore)],
)
def test_an_address_tells_how_many_may_be_asked_for(given: str, store: type) -> None:
    """As its class does, although nothing is opened; of a store that says nothing it is 32."""
    assert batch_max(given) == store.capabilities.call_max  # type: ignore[attr-defined]
    assert batch_max(Many()) == Many.capabilities.call_max > BATCH_MAX
    assert batch_max(Strange()) == BATCH_MAX


def test_a_client_that_is_missing_is_told_before_the_first_receive() -> None:
    """Where the store can tell; one that cannot is taken at its word."""
    with pytest.raises(ConfigurationError, match="install the client"):
        check_client(Many())  # type: ignore[arg-type]
    check_client(Strange())  # type: ignore[arg-type]
