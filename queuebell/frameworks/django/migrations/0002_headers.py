"""Headers of messages in the outbox."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds their column."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("queuebell", "0001_initial")]
    operations: ClassVar[list[object]] = [
        migrations.AddField("OutboxMessage", "headers", models.TextField(null=True)),
    ]
