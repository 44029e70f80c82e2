"""The store on PostgreSQL answers the questions that all stores answer, by a real server."""

from __future__ import annotations

import pytest

from tests.bridge.queues.postgres_rig import schema, server, store, url
from tests.conformance.queue import LetPass, QueueStoreConformance
from tests.support.postgres import let_pass_in

__all__ = ["schema", "server", "store", "url"]


@pytest.mark.system
class TestPostgresStore(QueueStoreConformance):
    @pytest.fixture
    def let_pass(self, url: str) -> LetPass:
        return let_pass_in(url)
