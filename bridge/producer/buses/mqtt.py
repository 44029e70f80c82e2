"""The MQTT bus: ``<prefix>/trigger/<account>/<queue>`` with QoS 1, which the broker acknowledges.

That the broker has it is all that MQTT can say. A bridge that is away meanwhile looks at its queues when it is back.
"""

from __future__ import annotations

from bridge.producer.buses.brokered import BrokerBus


class MqttBus(BrokerBus):
    """Carries triggers over ``mqtt://`` or ``mqtts://``."""
