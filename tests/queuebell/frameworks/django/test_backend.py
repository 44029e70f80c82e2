"""Producers: what `QueuebellBackend` puts, refuses and says; each case is a real program with Django set up."""

from __future__ import annotations

import django

from tests.queuebell.frameworks.django.shop import BACKEND, Shop

CHECK = f"""
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
here = tasks.task_backends.settings["default"]["OPTIONS"]
def told(options, queues=("default",)):
    given = {{"default": {{"BACKEND": "{BACKEND}", "QUEUES": list(queues), "OPTIONS": options}}}}
    with override_settings(TASKS=given):
        backend = tasks.task_backends["default"]
        found = [error.msg for error in backend.check()]
        try:
            backend.enqueue(charge, [1], {{}})
        except ImproperlyConfigured as error:
            assert found and str(error) == found[-1], (str(error), found)
        else:
            assert not found or "not installed" in str(found), found
        return found
"""
HERE = "TASKS['default']: "


async def test_wrong_settings_are_told_by_the_check_and_by_whoever_enqueues(shop: Shop) -> None:
    """In the same words, one clear line each, that never repeat a secret; nothing is put."""
    cases: list[tuple[dict[str, object], str]] = [
        ({}, f"{HERE}OPTIONS: store: where do tasks wait? For example 'http://127.0.0.1:8470'"),
        ({"stroe": 1, "store": "http://127.0.0.1:1"}, f"{HERE}OPTIONS: unknown key 'stroe'; did you mean 'store'?"),
        ({"store": 7}, f"{HERE}OPTIONS: store: "),
        ({"store": "http://user:s3cret@there"}, f"{HERE}store: the address contains a user or a password"),
        ({"store": "ftp://s3cret"}, f"{HERE}store: "),
        ({"store": "memory:here"}, f"{HERE}OPTIONS: store: memory: is one process's own"),
        ({"store": "sqlite:///s3cret.db"}, f"{HERE}OPTIONS: store: sqlite: is one process's own"),
        ({"store": "http://127.0.0.1:1", "bridge": "s3cret"}, f"{HERE}"),
        ({"store": "http://127.0.0.1:1", "account": "a/b"}, f"{HERE}OPTIONS: account: a name has letters"),
        ({"store": "http://127.0.0.1:1", "timeout": 0}, f"{HERE}timeout must be a number of seconds above 0"),
        ({"store": "http://127.0.0.1:1", "timeout": "1"}, f"{HERE}OPTIONS: timeout: "),
        ({"store": "http://127.0.0.1:1", "database": "other"}, f"{HERE}OPTIONS: database: DATABASES has no 'other'"),
        (
            {"store": "http://127.0.0.1:1", "database": "default"},
            f"{HERE}OPTIONS: database: the store and Django's database",
        ),
        ({"store": "postgres://a:s3cret@db/jobs", "database": "default"}, f"{HERE}OPTIONS: database: the store and"),
    ]
    found = await shop.run(
        CHECK
        + f"""
found = [told(options) for options in {[options for options, _ in cases]!r}]
found += [told(here, ["default", name]) for name in ("a b", "ä", "x-poison")]
with override_settings(INSTALLED_APPS=["shop"]):
    found.append(told(here))
print(json.dumps(found))
"""
    )
    expected = [
        *(words for _, words in cases),
        f"{HERE}QUEUES: 'a b': a name has letters",
        f"{HERE}QUEUES: 'ä': a name has letters",
        f"{HERE}QUEUES: x-poison: ",
        "TASKS['default']: the application queuebell.frameworks.django is not installed, which brings the worker",
    ]
    for words, lines in zip(expected, found, strict=True):
        assert len(lines) == 1 and lines[0].startswith(words), (words, lines)
        assert "s3cret" not in lines[0] and "\n" not in lines[0]
    assert await shop.depth() == 1  # the last one's, whose put needs no application


async def test_manage_check_tells(shop: Shop) -> None:
    """Django runs the check by itself, before the worker as well; right settings are silent."""
    fine = await shop.manage("check")
    assert (fine.code, "no issues" in "".join([*fine.lines, fine.errors])) == (0, True), fine.errors
    wrong = '{"default": {"BACKEND": "' + BACKEND + '", "QUEUES": ["default", "mail"], "OPTIONS": {"stroe": 1}}}'
    for command in ("check", "queuebell_worker"):
        ended = await shop.manage(command, SHOP_TASKS=wrong)
        assert ended.code == 1 and "(queuebell.E001)" in ended.errors and "Traceback" not in ended.errors


async def test_a_worker_that_cannot_work_says_why(shop: Shop) -> None:
    """In one line, with the exit code that says not to start it again."""
    code = """
from django.core.management import CommandError, call_command
def told(*words, **tasks_given):
    from django.test import override_settings
    with override_settings(TASKS=tasks_given or tasks.task_backends.settings):
        try:
            call_command("queuebell_worker", *words, skip_checks=True)
        except CommandError as error:
            return [error.returncode, str(error)]
ours = dict(tasks.task_backends.settings["default"])
other = {"BACKEND": tasks.__name__ + ".backends.dummy.DummyBackend"}
cases = [
    told("--queue", "post"), told("--backend", "no"), told("--max-attempts", "x"),
    told("--pool", "3", "--concurrency", "3"),
    told(default=other), told(default={**ours, "QUEUES": []}), told(default={**ours, "OPTIONS": {}}),
    told(default={**ours, "OPTIONS": {"store": "postgres://db/jobs"}}),
]
print(json.dumps(cases))
"""
    told = await shop.run(code)
    assert {returned for returned, _ in told} == {78}
    for (_, line), words in zip(
        told,
        [
            "--queue: post is none of TASKS['default']['QUEUES']: default, mail",
            "The connection 'no' doesn't exist.",
            "option --max-attempts: ",
            "concurrency: with a pool",
            "TASKS['default']: its BACKEND is another one",
            "TASKS['default']: QUEUES is empty: name what to work on with --queue",
            f"{HERE}OPTIONS: store: where do tasks wait?",
            "bridge: this store has none; name one with --bridge URL, or give --pull-only",
        ],
        strict=True,
    ):
        assert line.startswith(words), line


async def test_tasks_that_cannot_be_are_refused_and_nothing_is_put(shop: Shop) -> None:
    """By the words of Django where it has some: arguments, times, queues, names; and results are not kept."""
    told = await shop.run(
        """
import asyncio, datetime
from django.utils import timezone
def refused(call, *args):
    try:
        call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
async def in_a_loop():
    return refused(charge.enqueue, 1)
later = timezone.now() + datetime.timedelta(days=8)
print(json.dumps([
    refused(charge.enqueue, object()), refused(charge.enqueue, float("nan")), refused(charge.enqueue, {1: "one"}),
    refused(charge.enqueue, b"\\xff"), refused(charge.enqueue, "x" * 70_000), refused(renamed.enqueue),
    refused(lambda: charge.using(priority=5)), refused(lambda: charge.using(queue_name="post")),
    refused(lambda: charge.using(run_after=datetime.datetime(2026, 1, 1))),
    refused(charge.using(run_after=later).enqueue, 1), refused(charge.get_result, "1"), asyncio.run(in_a_loop()),
]))
"""
    )
    ours = "InvalidTask" if django.VERSION >= (6,) else "InvalidTaskError"
    for line, words in zip(
        told,
        [
            "TypeError: Unsupported type: <class 'object'>",
            "ValueError: Out of range float values are not JSON compliant",
            "TypeError: shop.tasks.charge: its arguments have keys that are not text",
            "ValueError: Unsupported value: <class 'bytes'>",
            "BadInput: ",
            f"{ours}: No worker could find shop.tasks.plain",
            f"{ours}: Backend does not support setting priority of tasks.",
            f"{ours}: Queue 'post' is not valid for backend.",
            f"{ours}: run_after must be an aware datetime.",
            "BadInput: ",
            "NotImplementedError: This backend does not support retrieving or refreshing results.",
            "SynchronousOnlyOperation: enqueue() would block this event loop: use `await task.aenqueue(...)`",
        ],
        strict=True,
    ):
        assert line.startswith(words), line
    assert await shop.depth() == 0


async def test_what_each_store_can(shop: Shop) -> None:
    """A delay is refused where the store has none; no store keeps results or an order of priority."""
    told = await shop.run(
        CHECK
        + """
def flags(store):
    with override_settings(TASKS={"default": {**tasks.task_backends.settings["default"], "OPTIONS": {"store": store}}}):
        found = tasks.task_backends["default"]
        return [found.supports_defer, found.supports_async_task, found.supports_get_result, found.supports_priority]
stores = ["http://127.0.0.1:1", "postgres://db/jobs", "redis://127.0.0.1:1/0", "sqs://eu-west-1", "nats://127.0.0.1:1"]
print(json.dumps([flags(store) for store in [*stores, ""]]))
"""
    )
    assert told == [[True, True, False, False]] * 4 + [[False, True, False, False]] * 2


async def test_threads_and_forks_share_and_part(shop: Shop) -> None:
    """All threads put over one connection, and a process forked after that has its own, as under gunicorn's prefork."""
    counts = await shop.run(
        """
import threading
def some(start):
    for number in range(start, start + 5):
        charge.enqueue(number)
def loops():
    return sum("queuebell" in thread.name for thread in threading.enumerate())
threads = [threading.Thread(target=some, args=(start,)) for start in range(0, 40, 5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
before = loops()
children = []
for start in (100, 200):
    if not (child := os.fork()):
        some(start)
        os._exit(0)
    children.append(child)
some(300)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(json.dumps([before, loops(), *codes]))
""",
        # From Python 3.12 on a fork beside threads warns; gunicorn forks before there are any.
        PYTHONWARNINGS="error,ignore::DeprecationWarning",
    )
    assert counts == [1, 1, 0, 0]
    await shop.worker()
    charged = await shop.tells("charged", 55)
    assert sorted(each["number"] for each in charged) == sorted(
        [*range(40), *range(100, 105), *range(200, 205), *range(300, 305)]
    )


async def test_from_views_and_the_shell(shop: Shop) -> None:
    """A view's `on_commit` enqueues after the commit and not after a rollback; a view on the loop awaits `aenqueue`."""
    statuses = await shop.run(
        """
import asyncio
from django.test import AsyncClient, Client
client = Client(raise_request_exception=False)
async def asked():
    return await AsyncClient().get("/async/3/")
answers = [client.get("/orders/20/"), client.get("/orders/21/?fail"), asyncio.run(asked())]
print(json.dumps([answer.status_code for answer in answers]))
"""
    )
    assert statuses == [202, 500, 202]
    shell = await shop.manage("shell", "-v", "0", "-c", "from shop.tasks import send; send.enqueue('ada')")
    assert shell.code == 0, shell.errors
    assert [await shop.depth(), await shop.depth("django/mail")] == [2, 1]
    await shop.worker("--queue", "default")
    charged = await shop.tells("charged", 2)
    assert sorted(each["number"] for each in charged) == [3, 20]
    assert await shop.depth("django/mail") == 1
