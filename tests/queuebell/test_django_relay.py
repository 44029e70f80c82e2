"""``manage.py queuebell_relay``: the outbox of a Django application, relayed by a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.processes import Processes, environment

SETTINGS = """
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {name!r}}}}}
INSTALLED_APPS = ["queuebell.frameworks.django"]
"""
PUT = """
import django
django.setup()
from django.db import transaction
from queuebell.frameworks.django import outbox
with transaction.atomic():
    outbox.put("billing/orders", ["order 1", "order 2"])
"""


async def test_the_command_relays_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """Migrated as any application; SIGTERM has it bring out what is committed; models and migrations agree."""
    (tmp_path / "shop.py").write_text(SETTINGS.format(name=str(tmp_path / "application.db")))
    env = environment(DJANGO_SETTINGS_MODULE="shop")
    env["PYTHONPATH"] += f":{tmp_path}"
    manage = (sys.executable, "-m", "django")
    async with Processes(tmp_path) as processes:
        early = await processes.start(*manage, "queuebell_relay", "--store", "memory:outbox", env=env)
        assert await early.ended() == 1
        assert "this connection finds no table queuebell_outbox" in early.errors and "Traceback" not in early.errors
        for command in (("makemigrations", "--check"), ("migrate",)):
            done = await processes.start(*manage, *command, env=env)
            assert await done.ended() == 0, done.errors
        relay = await processes.start(*manage, "queuebell_relay", "--store", "memory:outbox", env=env)
        await relay.line("queuebell outbox: ready")
        done = await processes.start(sys.executable, "-c", PUT, env=env)
        assert await done.ended() == 0, done.errors
        assert await relay.stop() == 0, relay.errors
        assert relay.lines[-1] == "sent 2, refused 0"
