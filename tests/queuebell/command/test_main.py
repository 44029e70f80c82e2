"""The table of subcommands: loaded when called, quick, and clear about mistakes."""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

import bridge
from queuebell.command.main import SUBCOMMANDS, main
from tests.support.command import environment, perform, run
from tests.support.processes import PATIENCE_S


def test_help_names_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    """`queuebell --help` is 0 and lists what there is; without words it is 2."""
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in SUBCOMMANDS:
        assert f"  {name} " in text
    assert main([]) == 2


@pytest.mark.system
def test_the_first_process_of_a_container_ends_by_sigterm() -> None:
    """Without an init, and before the command has set a handler of its own; here it waits for a bridge's answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE_S)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        line = ["unshare", "--fork", "--pid", sys.executable, "-m", "queuebell", "status", "--bridge", url]
        with subprocess.Popen(line, env=environment()) as outside:
            connection, _ = silent.accept()
            with connection:
                children = pathlib.Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
                (first,) = map(int, children)
                os.kill(first, signal.SIGTERM)
                try:
                    assert outside.wait(PATIENCE_S) == 128 + signal.SIGTERM
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(first, signal.SIGKILL)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` is the package's."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"queuebell {bridge.__version__}\n"


def test_a_wrong_word_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown subcommand is 2, with what was probably meant."""
    assert main(["serv"]) == 2
    assert "did you mean 'serve'" in capsys.readouterr().err


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_keeps_the_shape(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each module has add_arguments and run, and its own --help."""
    module = importlib.import_module(SUBCOMMANDS[name].module)
    assert callable(module.run)
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"queuebell {name}" in text
    assert "`" not in text


def test_help_loads_nothing_heavy() -> None:
    """The overview needs no web server, no SDK, and not even asyncio."""
    code = (
        "import sys; from queuebell.command.main import main; main(['--help']);"
        "print([m for m in ('aiohttp', 'prometheus_client', 'asyncio', 'sqlite3', 'listeners') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=500, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["publish", "nonsense"], 2, "queue reference"),
        (["publish", "a/q", "--size", "0"], 2, "payload_size"),
        (["publish", "a/q", "--bridge", "ftp://x"], 78, "bridge"),
        (["publish", "a/q", "--bridge", "http://127.0.0.1:9"], 69, "no bridge answers at http://127.0.0.1:9"),
        (["status", "--bridge", "http://127.0.0.1:9"], 69, "no bridge answers at http://127.0.0.1:9"),
        (["status", "--bridge", "nonsense"], 78, "bridge"),
        (["queue", "depth", "a/q", "--store", "http://127.0.0.1:9"], 69, "127.0.0.1:9"),
        (["queue", "list", "--store", "sqlite:///x.db"], 78, "never opens a data file"),
        (["queue", "list", "--store", "nonsense"], 78, "store"),
        (["queue", "depth", "a"], 2, "(given: 'a')"),
        (["queue", "depth", "a b\x1b[0m/" + "x" * 80], 2, f"(given: 'a b\\x1b[0m/{'x' * 52}...')"),
        (["queue", "depth", "http://me:hush@127.0.0.1:9/a"], 2, "(given: '127.0.0.1:9/a')"),
        (["queue", "depth", "a/q:0"], 2, "(given: 'a/q:0')"),
        (["listen", "http://127.0.0.1:9", "a/q,a", "--exec", "true"], 2, "(given: 'a')"),
        (["queue"], 2, "ACTION"),
        (["listen", "http://127.0.0.1:9", "a/q"], 78, "MODULE:FUNCTION"),
        (["listen", "http://127.0.0.1:9", "a/q", "no_such_module_here:f"], 78, "no_such_module_here"),
        (["listen", "http://127.0.0.1:9", "a/q", "json:nothing"], 78, "nothing"),
        (["listen", "http://127.0.0.1:9", "a/q", "json"], 78, "MODULE:FUNCTION"),
        (["listen", "http://127.0.0.1:9", "a/q", "--exec", "true", "--concurrency", "0"], 78, "--concurrency"),
        (["serve", "--listen", "nonsense"], 78, "listen"),
        (["serve", "--listen", "0.0.0.0:0"], 78, "--insecure-public"),
        (["serve", "--log-level", "loud"], 78, "--log-level"),
        (["serve", "--config", "/no/such/file"], 78, "/no/such/file"),
        (["serve", "--nonsense"], 2, "--nonsense"),
    ],
)
def test_mistakes_have_a_code_and_one_line(
    words: list[str], code: int, text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Usage is 2, configuration 78, unreachable 69; one line says what, and no traceback is shown."""
    monkeypatch.chdir(tmp_path)
    done = perform(*words, code=code)
    lines = done.stderr.decode().strip().splitlines()
    assert text in lines[-1]
    assert "Traceback" not in done.stderr.decode()
    assert done.stdout == b""


def test_a_process_ends_with_the_code_of_its_command() -> None:
    """And its one line goes to standard error."""
    done = run("publish", "nonsense", code=2)
    assert done.stdout == b"" and b"queue reference" in done.stderr
    assert len(done.stderr.splitlines()) == 1
