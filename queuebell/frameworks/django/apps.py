"""What Django asks of an application: its name, and the label that its tables begin with."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig
from django.conf import settings


class QueuebellConfig(AppConfig):
    """The application ``queuebell.frameworks.django``."""

    name = "queuebell.frameworks.django"
    label = "queuebell"
    verbose_name = "Queuebell"

    def ready(self) -> None:
        """Have ``manage.py check`` look at ``TASKS``: Django 6.1 does so only once somebody has imported its tasks."""
        if hasattr(settings, "TASKS"):
            import_module("queuebell.frameworks.django.interface")
