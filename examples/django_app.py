"""Django with tasks in one file: `python examples/django_app.py queuebell_worker` is the worker.

`python examples/django_app.py shell -c "from __main__ import charge; charge.enqueue(17)"` puts work, as a view would.
In a project `manage.py` stands for this file, and what is configured here is in settings.py. `BRIDGE` in the
environment is the bridge's address.
"""

import os
import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line

settings.configure(
    INSTALLED_APPS=["queuebell.frameworks.django"],
    TASKS={
        "default": {
            "BACKEND": "queuebell.frameworks.django.tasks.QueuebellBackend",
            "OPTIONS": {"store": os.environ.get("BRIDGE", "http://127.0.0.1:8470")},
        }
    },
)
django.setup()

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task


@task
def charge(order: int) -> None:
    print(f"charged order {order}", flush=True)


if __name__ == "__main__":
    execute_from_command_line(sys.argv)
