"""What Django asks of an application: its name, and the label that its tables begin with."""

from __future__ import annotations

from django.apps import AppConfig


class QueuebellConfig(AppConfig):
    """The application ``queuebell.frameworks.django``."""

    name = "queuebell.frameworks.django"
    label = "queuebell"
    verbose_name = "Queuebell"
