"""Every block of code in the documents is run, or read by what would read it; which of them, the register says."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from queuebell.bridge.contract.partitioning import jump
from queuebell.bridge.contract.settings import parse_toml
from queuebell.command import listen_settings, scale
from queuebell.settings import load
from tests.docs import snippet_world
from tests.docs.snippets import DATA, REQUEST, SHELL, SQL, TOML, C, Snippet, kind, program, snippets, typed
from tests.readme.test_form import unknown_in
from tests.readme.user import User
from tests.support.postgres import execute, running
from tests.support.processes import READY, ROOT, Processes, Service

# Sketches whose functions have no types, as a page for people of other languages may.
UNTYPED = {
    ("web-application.md", "async def mine(app)"),
    ("postgres.md", "async def order(pool, number)"),
    ("django.md", "@task"),  # Django has no types, nor has Celery
    ("celery.md", "@app.task"),
    ("dramatiq.md", "@dramatiq.actor"),
}
TAUGHT = {"jobs", "shop", "worker"}
"""What other programs of the tutorials import."""
CONFIGURATION = """[mypy]
# As in pyproject.toml, so that what `make check` has kept of our modules is read, and not made anew.
cache_dir = {root}/.mypy_cache
python_version = 3.11
strict = True
warn_unreachable = True
explicit_package_bases = True
namespace_packages = True
enable_error_code = ignore-without-code, redundant-expr, truthy-bool, unused-awaitable
mypy_path = {root}:{folder}

[mypy-django.*,django_tasks.*]
ignore_missing_imports = True

[mypy-celery.*,dramatiq.*,kombu.*]
ignore_missing_imports = True
follow_imports = skip

[mypy-queuebell.frameworks.celery.*,queuebell.frameworks.dramatiq]
disallow_subclassing_any = False

[mypy-queuebell.frameworks.django.*]
disallow_subclassing_any = False
"""
SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

ALL = list(snippets())


def of_kind(*kinds: str) -> list[Snippet]:
    return [snippet for snippet in ALL if kind(snippet) in kinds]


def test_every_block_is_of_a_known_kind() -> None:
    """One of another language, or of none and no command of ours, would be found."""
    assert len(ALL) > 90
    assert len({snippet.name for snippet in ALL}) == len(ALL)
    for snippet in ALL:
        kind(snippet)
    with pytest.raises(LookupError, match="no known kind"):
        kind(Snippet(ROOT / "docs" / "page.md", 1, "haskell", "main = id", ""))


@pytest.mark.parametrize("snippet", of_kind(SHELL, REQUEST), ids=lambda snippet: snippet.name)
def test_shell_is_shell_and_our_commands_are_there(snippet: Snippet) -> None:
    script = "\n".join(line.removeprefix("$ ") for line in snippet.text.splitlines())
    subprocess.run(["/bin/sh", "-n"], input=script, text=True, check=True)
    for words in snippet.commands:
        if words[0] in {"queuebell", "python"}:
            assert unknown_in(" ".join(words)) == []


@pytest.mark.system
async def test_requests_are_answered(processes: Processes, tmp_path: Path) -> None:
    """Each curl of the pages, at a bridge that runs; the function that puts again is called."""
    user = User(processes, tmp_path)
    serve: Service = await user.start("exec queuebell serve", "serve", Service)
    await serve.line(READY)
    (tmp_path / "body").write_text("order 17")
    await user.run("queuebell queue put billing/orders-poison 'no order'")  # some pages are about dead letters
    for snippet in of_kind(REQUEST):
        if all(words[0] == "curl" for words in snippet.commands):
            await user.run(snippet.text.replace("curl -X", "curl -fsS -X"))
        else:
            assert snippet.text.startswith("put() {"), snippet.name
            await user.run(f"{snippet.text}\nput order-17 body && put order-17 body")


@pytest.mark.parametrize("snippet", of_kind(TOML), ids=lambda snippet: snippet.name)
def test_toml_is_taken_by_the_settings(snippet: Snippet, tmp_path: Path) -> None:
    """As in a file of `--config`: the bridge's own keys by its loader, a listener's by its."""
    file = tmp_path / "queuebell.toml"
    file.write_text(snippet.text.replace("whsec_...", SECRET))
    load(str(file), environment={})
    tables = parse_toml(snippet.text, snippet.name)
    if "listener" in tables:
        listen_settings.load(str(file), environment={})
    if "scale" in tables:
        scale.load(str(file), environment={}, options={})
    file.write_text(f"{snippet.text}\nno_such_key = 1\n")
    with pytest.raises(Exception, match="no_such_key"):
        scale.load(str(file), environment={}, options={}) if "scale" in tables else (
            load(str(file), environment={}) and listen_settings.load(str(file), environment={})
        )


def test_data_can_be_read() -> None:
    for snippet in of_kind(DATA):
        (json.loads if snippet.language == "json" else yaml.safe_load)(snippet.text)


@pytest.mark.system
async def test_sql_runs_on_a_real_server() -> None:
    """Each statement, on the tables that `queue init --notify` makes."""
    with running() as server:
        command = [sys.executable, "-m", "queuebell", "queue", "init", server.url(), "--notify"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        await execute(server.url(), "CREATE ROLE reports")  # a page sets a limit for one of yours
        for snippet in of_kind(SQL):
            for line in snippet.text.splitlines():
                await execute(server.url(), line.partition(" -- ")[0])


@pytest.mark.system
@pytest.mark.parametrize("snippet", of_kind(C), ids=lambda snippet: snippet.name)
def test_c_computes_what_we_compute(snippet: Snippet, tmp_path: Path) -> None:
    """The partition of a key, for whoever writes a producer in another language."""
    (tmp_path / "jump.c").write_text(f"#include <stdint.h>\n{snippet.text}")
    library = tmp_path / "jump.so"
    subprocess.run(["gcc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, tmp_path / "jump.c"], check=True)
    compiled = ctypes.CDLL(str(library)).jump
    compiled.argtypes, compiled.restype = [ctypes.c_uint64, ctypes.c_int32], ctypes.c_int32
    for number in (0, 1, 4711, 2**63, 2**64 - 1):
        assert [compiled(number, count) for count in (1, 8, 1000)] == [jump(number, count) for count in (1, 8, 1000)]


def test_python_is_python_and_says_all_that_it_needs() -> None:
    """Each block can be compiled once its free names are taken from what a reader has."""
    for snippet in typed():
        compile(program(snippet, set(dir(snippet_world))), snippet.name, "exec")


@pytest.mark.rest
def test_python_passes_strict_type_checking(tmp_path: Path) -> None:
    """One run of mypy over all of it, and one fault planted that must be found."""
    world = set(dir(snippet_world))
    for snippet in typed():
        text = program(snippet, world)
        if any(snippet.page.name == page and part in text for page, part in UNTYPED):
            text = f"# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators\n{text}"
        (tmp_path / f"{snippet.name}.py").write_text(text, encoding="utf-8")
        if snippet.saved == "tasks" or (snippet.saved in TAUGHT and snippet.page.parent.name == "tutorials"):
            (tmp_path / f"{snippet.saved}.py").write_text(text, encoding="utf-8")
    (tmp_path / "planted.py").write_text("from queuebell import Retry\n\nRetry(after='soon')\n")
    (tmp_path / "mypy.ini").write_text(CONFIGURATION.format(root=ROOT, folder=tmp_path))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(tmp_path / "mypy.ini"), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    wrong = [line for line in checked.stdout.splitlines() if ": error:" in line]
    assert [line for line in wrong if "planted.py" not in line] == [], checked.stdout + checked.stderr
    assert len(wrong) == 1, checked.stdout + checked.stderr
