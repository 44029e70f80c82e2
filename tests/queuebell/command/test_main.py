"""The table of subcommands: loaded when called, quick, and clear about mistakes."""

from __future__ import annotations

import contextlib
import http.server
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import queuebell.bridge
from queuebell.command.main import SUBCOMMANDS, main
from tests.readme.test_form import nested, parser_of
from tests.support.command import environment, perform, run
from tests.support.processes import GLANCE_S, PATIENCE_S


def test_help_names_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    """`queuebell --help` is 0 and lists what there is; without words it is 2."""
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in SUBCOMMANDS:
        assert f"  {name} " in text
    assert main([]) == main(["queue"]) == main(["put"]) == 2
    said = capsys.readouterr().err
    assert "export" in said and "no such command: 'put'; did you mean 'queue put'?" in said


ACTIONS = [(name, *([action] if action else [])) for name in SUBCOMMANDS for action in ("", *nested(parser_of(name)))]


@pytest.mark.parametrize("typed", ACTIONS, ids=" ".join)
def test_the_help_of_a_command_ends_with_examples_that_can_be_typed(
    typed: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*typed, "--help"])
    _, _, examples = capsys.readouterr().out.partition("\nexamples:\n")
    lines = [shlex.split(line) for line in examples.splitlines()]
    assert len(lines) >= (2 if len(typed) == 1 else 1)
    name = typed[0]
    for command, own, *words in lines:
        assert (command, own, *words[: len(typed) - 1]) == ("queuebell", *typed)
        parser = parser_of(name)
        (parser.parse_args if SUBCOMMANDS[name].nested else parser.parse_intermixed_args)(words)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_a_help_fits_a_screen(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    head, _, examples = capsys.readouterr().out.partition("\nexamples:\n")
    assert max(map(len, head.splitlines())) <= 80
    assert len([*head.splitlines(), *examples.splitlines()]) <= 50


@pytest.mark.parametrize(
    ("words", "closed", "code", "told"),
    [
        (["status"], ">&-", 1, "queuebell status: standard output is closed, and nothing was done\n"),
        (["queue", "put", "a/q", "x", "--store", "http://127.0.0.1:9"], ">&-", 1, "nothing was done"),
        (["queue", "put", "a/q", "x", "--store", "http://127.0.0.1:9"], "2>&-", 69, ""),
        (["listen", "http://127.0.0.1:9", "a/q", "no_such:handler"], ">&-", 78, "there is no module no_such"),
        (["status", "$(printf '\\377')"], "", 2, r"argument 2 is not UTF-8, and nothing was done: '\udcff'"),
        (["queue", "put", "a/q", "$(printf '\\377')", "--store", "http://127.0.0.1:9"], "", 69, "127.0.0.1:9"),
    ],
)
def test_a_closed_stream_or_an_unreadable_word_is_said_before_anything_is_done(
    words: list[str], closed: str, code: int, told: str
) -> None:
    line = f"{shlex.quote(sys.executable)} -m queuebell {' '.join(words)} {closed}"
    ended = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment(), timeout=PATIENCE_S)
    assert ended.returncode == code, ended.stderr
    assert told in ended.stderr and "Traceback" not in ended.stderr and len(ended.stderr.splitlines()) == bool(told)


@pytest.mark.parametrize(
    ("words", "bare"),
    [
        (("queue", "put", "127.0.0.1:8470", "a/b", "x"), "127.0.0.1:8470"),
        (("queue", "depth", "a/b", "--store", "user:secret@db.example:5432/jobs"), "db.example:5432"),
        (("queue", "init", "postgres@[::1]:5432/jobs"), "[::1]:5432"),
        (("listen", "localhost:8470", "a/b", "m:f"), "localhost:8470"),
        (("scale", "localhost:8470", "a/b", "--", "true"), "localhost:8470"),
        (("publish", "a/b", "--bridge", "localhost:8470"), "localhost:8470"),
        (("status", "--bridge", "localhost:8470"), "localhost:8470"),
    ],
)
def test_an_address_without_a_scheme_is_mended_in_the_refusal(
    words: tuple[str, ...], bare: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    said = capsys.readouterr().err
    assert f"{bare}: an address begins with its scheme; did you mean http://{bare}?" in said and "secret" not in said


def test_a_command_that_is_misspelt_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    for words, meant in ((["statsu"], "did you mean 'status'?"), (["zzz"], "")):
        with contextlib.suppress(SystemExit):
            assert main(words) == 2
        said = capsys.readouterr().err
        assert (meant in said) and ("did you mean" in said) is bool(meant)


def test_a_file_whose_name_is_a_number_is_no_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queue", "depth", "a/b", "--store", "sqlite:2024"]) == 78
    assert "never opens a data file" in capsys.readouterr().err


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
    assert capsys.readouterr().out == f"queuebell {queuebell.bridge.__version__}\n"


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
        (["queue", "depth", "Shop/Ordérs"], 2, "(given: 'Shop/Ordérs')"),
        (["queue", "depth", "a b\x1b[0m/" + "x" * 80], 2, f"(given: 'a b\\x1b[0m/{'x' * 52}...')"),
        (["queue", "depth", "http://me:hush@127.0.0.1:9/a"], 2, "(given: '127.0.0.1:9/a')"),
        (["queue", "depth", "a/q:0"], 2, "(given: 'a/q:0')"),
        (["listen", "http://127.0.0.1:9", "a/q,a", "--exec", "true"], 2, "(given: 'a')"),
        (["queue", "putt"], 2, "; did you mean put?"),
        (["queue", "put", "a/q", "x", "--dely", "1"], 2, "; did you mean --delay?"),
        (["serve", "--port", "1"], 2, "unrecognized arguments: --port 1; did you mean --"),
        (
            ["queue", "put", "a/q", "--file", "/none"],
            2,
            "cannot read /none: No such file or directory; nothing was put",
        ),
        (["listen", "http://127.0.0.1:9", "a/q"], 78, "MODULE:FUNCTION"),
        (["listen", "http://127.0.0.1:9", "a/q", "no_such_module_here:f"], 78, "no_such_module_here"),
        (["listen", "http://127.0.0.1:9", "a/q", "json:nothing"], 78, "nothing"),
        (["listen", "http://127.0.0.1:9", "a/q", "json"], 78, "MODULE:FUNCTION"),
        (["listen", "http://127.0.0.1:9", "a/q", "--exec", "true", "--concurrency", "0"], 78, "--concurrency"),
        (["listen", "http://127.0.0.1:9", "a/q", "--exec", " "], 78, "--exec is empty"),
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
    done = run("publish", "nonsense", code=2)
    assert done.stdout == b"" and b"queue reference" in done.stderr
    assert len(done.stderr.splitlines()) == 1


HTML = ("text/html", b"<html><body>hush</body></html>")
KINDS: dict[str, tuple[int, str, bytes]] = {
    "404 page": (404, *HTML),
    "404 JSON": (404, "application/json", b'{"detail": "Not Found"}'),
    "404 empty": (404, "text/plain", b""),
    "401": (401, *HTML),
    "page": (200, *HTML),
    "JSON": (200, "application/json", b"{}"),
    "JSON list": (200, "application/json", b"[1]"),
    "nearly": (200, "application/json", b'{"ready": "yes"}'),
    "empty": (200, "text/plain", b""),
    "login": (302, *HTML),
    "500": (500, *HTML),
}


class Stranger:
    """Another web server, which answers everything alike."""

    def __init__(self, status: int, kind: str, body: bytes) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                away = status == 302 and self.path != "/login"
                self.send_response(status if away or status != 302 else 200)
                if away:
                    self.send_header("Location", "/login")
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.where = f"127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(GLANCE_S,), name="stranger", daemon=True)


@pytest.fixture(scope="module", params=KINDS)
def stranger(request: pytest.FixtureRequest) -> Iterator[Stranger]:
    made = Stranger(*KINDS[request.param])
    made.thread.start()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()
