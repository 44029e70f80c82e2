"""A shop whose database, tasks and applications are in the environment, as JSON."""

import json
import os

import django

SECRET_KEY = "of no use"
ALLOWED_HOSTS = ["testserver"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["shop", "queuebell.frameworks.django", *(["django_tasks"] if django.VERSION < (6,) else [])]
DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
TASKS = json.loads(os.environ["SHOP_TASKS"])
