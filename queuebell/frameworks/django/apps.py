"""The Django application: its name, and the label of its tables."""

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
        """Make ``manage.py check`` check ``TASKS``; Django 6.1 does so only after its tasks were imported."""
        if hasattr(settings, "TASKS"):
            import_module("queuebell.frameworks.django.interface")
