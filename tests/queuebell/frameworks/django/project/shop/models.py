"""What the shop keeps."""

from django.db import models


class Order(models.Model):
    """An order, and how often it was charged."""

    number = models.IntegerField(unique=True)
    charged = models.IntegerField(default=0)
