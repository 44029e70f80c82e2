"""Celery's workers and producers on Queuebell: importing this registers ``queuebell://`` as a broker URL.

::

    import queuebell.frameworks.celery

    app = Celery("shop", broker="queuebell://127.0.0.1:8470")

Tasks, retries, schedules, results and monitors are Celery's own.
"""

from kombu.transport import TRANSPORT_ALIASES

from queuebell.frameworks.celery.transport import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES["queuebell"] = "queuebell.frameworks.celery.transport:Transport"
