"""The outbox's table, made by `manage.py migrate`."""

from __future__ import annotations

from django.db import models


class OutboxMessage(models.Model):
    """A message that waits for its relay; ``refused`` says why a store will never take it."""

    id = models.BigAutoField(primary_key=True)
    version = models.SmallIntegerField()
    put_key = models.CharField(max_length=128)
    queue = models.CharField(max_length=161)
    body = models.BinaryField()
    written_ms = models.BigIntegerField()
    visible_after_ms = models.BigIntegerField()
    ttl_s = models.BigIntegerField()
    headers = models.TextField(null=True)
    refused = models.TextField(null=True)

    class Meta:
        """What Django asks of a table."""

        db_table = "queuebell_outbox"
