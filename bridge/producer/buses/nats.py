"""The NATS bus: ``<prefix>.trigger.<account>.<queue>`` as a request, which a bridge answers after its mark."""

from __future__ import annotations

from bridge.producer.buses.brokered import BrokerBus


class NatsBus(BrokerBus):
    """Carries triggers over ``nats://`` or ``tls://``; with no bridge there, it is told at once."""
