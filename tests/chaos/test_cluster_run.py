"""The long run of a cluster, short: it kills, restarts all in turn, drains and sums up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.cluster_run import BRIDGE, ROLLING, ClusterRun


@pytest.mark.system
@pytest.mark.timeout(600)
async def test_a_short_long_run_of_a_cluster(tmp_path: Path) -> None:
    """C1 to C9: what was acknowledged is handled while bridges, NATS servers and workers are killed and restarted."""
    said: list[str] = []
    outcome = await ClusterRun(4_000, seed=2, say=said.append).run(tmp_path)
    assert outcome.broken == []
    assert outcome.total.acknowledged >= 4_000
    assert (outcome.total.lost, outcome.total.unexpected) == (0, 0)
    assert outcome.faults[ROLLING] == 1
    assert outcome.faults[BRIDGE] >= 1
    assert "all is put and healed; draining" in said
