"""The documents name nothing that there is not: commands, options, targets, names, links."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import re
import shlex
from pathlib import Path

import pytest

import queuebell
from bench.cost import cli as cost
from queuebell.command.main import SUBCOMMANDS
from tests.readme.documents import DOCUMENTS, README, TOUR, blocks, commands, inline_code, links
from tests.simulation import command as simulation
from tests.support.processes import ROOT

OPTION = re.compile(r"--[a-z][a-z-]*")


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of one subcommand."""
    parser = argparse.ArgumentParser(prog=name, add_help=True)
    importlib.import_module(SUBCOMMANDS[name].module).add_arguments(parser)
    return parser


def nested(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's own subcommands."""
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


def options(parser: argparse.ArgumentParser) -> set[str]:
    """Return all options, also those of subcommands."""
    own = {text for action in parser._actions for text in action.option_strings}
    return own.union(*(options(sub) for sub in nested(parser).values()))


def rig_parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of what runs from the checkout and is no subcommand, by how it is called."""
    parsers = {}
    for called, rig in (("python -m tests.simulation", simulation), ("python -m bench cost", cost)):
        rig.add_arguments(parser := argparse.ArgumentParser(prog=called))
        parsers[called] = parser
    return parsers


def unknown_in(command: str) -> list[str]:
    """Return what a ``queuebell ...`` line, or one of ``python -m ...``, names that its command line does not have."""
    for called, parser in rig_parsers().items():
        if command.startswith(called):
            words = shlex.split(command.removeprefix(called).split("#")[0])
            return [word for word in words if word.startswith("--") and word.partition("=")[0] not in options(parser)]
    words = shlex.split(command.split("#")[0])
    if words[0] == "python":
        # Another program of the checkout: `python -m bench auth`, say.
        module = words[2] if words[1:2] == ["-m"] else ""
        ours = module.startswith(("tests", "bench"))
        return [module] if ours and not importlib.util.find_spec(module) else []
    words = words[1:]
    words = words[: words.index("--")] if "--" in words else words  # what follows is another program
    if not words or words[0] in {"--help", "--version"}:
        return []
    if words[0] not in SUBCOMMANDS:
        return [words[0]]
    parser = parser_of(words[0])
    actions = nested(parser)
    if actions and len(words) > 1 and words[1] != "...":
        if words[1] not in actions:
            return [words[1]]
        parser = actions[words[1]]
    known = options(parser)
    return [word for word in words[1:] if word.startswith("--") and word.partition("=")[0] not in known]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands(path: Path) -> None:
    """Every subcommand and option that a document shows exists."""
    assert {command: unknown for command in commands(path) if (unknown := unknown_in(command))} == {}


def test_options_in_the_text() -> None:
    """An option that a document names by itself belongs to some subcommand."""
    known = set().union(*(options(parser_of(name)) for name in SUBCOMMANDS), *map(options, rig_parsers().values()))
    for path in DOCUMENTS:
        named = {word for text in inline_code(path) if text.startswith("-") for word in OPTION.findall(text)}
        assert named <= known, path.name


def test_make_targets() -> None:
    """Every ``make ...`` of a document is a target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in DOCUMENTS:
        shown = [
            *inline_code(path),
            *(line for block in blocks(path) if block.language == "sh" for line in block.lines),
        ]
        named = {text.split()[1] for text in shown if re.match(r"make [a-z]", text)}
        assert named <= targets, path.name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links(path: Path) -> None:
    """Every relative link leads somewhere within the checkout, and to a heading that is there."""
    for link in links(path):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            heads = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}
            assert anchor in slugs, link


def test_paths_in_the_text() -> None:
    """A file or folder that a document names in its text is there."""
    for path in DOCUMENTS:
        for text in inline_code(path):
            if re.fullmatch(r"(bench|bridge|docs|examples|listeners|tests)/[\w./-]*", text):
                assert (ROOT / text).exists(), f"{path.name}: {text}"


BLOCKS = [*blocks(README), *blocks(TOUR)]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_names_in_code(number: int) -> None:
    """What a Python block imports from here exists, and its calls have only keywords that are known."""
    block = BLOCKS[number]
    if block.language != "python":
        assert block.language in {"", "sh"}
        return
    names: dict[str, object] = {}
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom):
            assert node.module not in {"bridge", "listeners"}, "queuebell has all names"
            if node.module == "queuebell":
                for alias in node.names:
                    assert alias.name in dir(queuebell), alias.name
                    names[alias.name] = getattr(queuebell, alias.name)
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            known = inspect.signature(names[node.func.id]).parameters  # type: ignore[arg-type]
            assert {keyword.arg for keyword in node.keywords} <= known.keys()


def test_names_in_the_text() -> None:
    """Public names that the tour uses in passing exist and take what it says."""
    shown = {text for text in inline_code(TOUR) if re.fullmatch(r"(raise )?[A-Z]\w+(\.\w+)?\(.*\)", text)}
    assert shown >= {"raise Retry(after=60)", "Listener.state()"}
    for text in shown:
        call = ast.parse(text.removeprefix("raise "), mode="eval").body
        assert isinstance(call, ast.Call)
        name = ast.unparse(call.func).split(".")
        value: object = getattr(queuebell, name[0])
        for part in name[1:]:
            value = getattr(value, part)
        known = inspect.signature(value).parameters  # type: ignore[arg-type]
        assert {keyword.arg for keyword in call.keywords} <= known.keys(), text
    keywords = {text.partition("=")[0] for text in inline_code(TOUR) if re.fullmatch(r"[a-z_]+(=\w+)?", text)}
    assert {"payload", "max_attempts"} <= keywords
    assert {"payload", "max_attempts"} <= inspect.signature(queuebell.Listener).parameters.keys()
