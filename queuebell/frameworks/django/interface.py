"""Django's tasks under one name: Django 6's own, or before it ``django-tasks``, the same by their author."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import django

PACKAGE: Final = "django.tasks" if django.VERSION >= (6,) else "django_tasks"

tasks: Any = import_module(PACKAGE)
base: Any = import_module(f"{PACKAGE}.base")
signals: Any = import_module(f"{PACKAGE}.signals")
BaseTaskBackend: Any = import_module(f"{PACKAGE}.backends.base").BaseTaskBackend
import_module(f"{PACKAGE}.checks")
_exceptions: Any = import_module(f"{PACKAGE}.exceptions")
InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
