"""The outbox's table."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Makes it."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[object]] = [
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("version", models.SmallIntegerField()),
                ("put_key", models.CharField(max_length=128)),
                ("queue", models.CharField(max_length=161)),
                ("body", models.BinaryField()),
                ("written_ms", models.BigIntegerField()),
                ("visible_after_ms", models.BigIntegerField()),
                ("ttl_s", models.BigIntegerField()),
                ("refused", models.TextField(null=True)),
            ],
            options={"db_table": "queuebell_outbox"},
        ),
    ]
