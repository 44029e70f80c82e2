"""The documents name nothing that there is not: commands, options, targets, names, links."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from bench.cost import cli as cost
from queuebell.command.main import SUBCOMMANDS
from tests.readme.documents import DOCUMENTS, blocks, commands, inline_code, links
from tests.simulation import command as simulation
from tests.support.processes import ROOT

# Private: `_SubParsersAction`, `_actions`: argparse lists its options no other way.

OPTION = re.compile(r"--[a-z][a-z-]*")


def parser_of(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, add_help=True)
    importlib.import_module(SUBCOMMANDS[name].module).add_arguments(parser)
    return parser


def nested(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


def options(parser: argparse.ArgumentParser) -> set[str]:
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
    for path in DOCUMENTS:
        for text in inline_code(path):
            if re.fullmatch(r"(bench|bridge|docs|examples|listeners|tests)/[\w./-]*", text):
                assert (ROOT / text).exists(), f"{path.name}: {text}"
