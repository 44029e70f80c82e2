"""The sum of many files' facts: what the process controller reports, and what the direct check is compared by."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from queuebell.demo.analysis import CANNOT_BE_READ, DOES_NOT_PARSE, FileFacts


class LongestOfAll(msgspec.Struct, frozen=True):
    """The longest function of all files: where it is, what it is called, how many lines it has."""

    path: str
    name: str
    line: int
    lines: int


class Report(msgspec.Struct, frozen=True):
    """The counts of all files together."""

    files: int
    lines: int
    code_lines: int
    functions: int
    classes: int
    imports: int
    unparsed: int
    unreadable: int
    longest: LongestOfAll | None


def add_up(facts: Mapping[str, FileFacts]) -> Report:
    """Add up facts by path. The order of the mapping plays no part: of equal functions the first path's counts."""
    longest: LongestOfAll | None = None
    for path in sorted(facts):
        found = facts[path].longest
        if found is not None and (longest is None or found.lines > longest.lines):
            longest = LongestOfAll(path, found.name, found.line, found.lines)
    every = facts.values()
    return Report(
        files=len(facts),
        lines=sum(each.lines for each in every),
        code_lines=sum(each.code_lines for each in every),
        functions=sum(each.functions for each in every),
        classes=sum(each.classes for each in every),
        imports=sum(each.imports for each in every),
        unparsed=sum(each.fault == DOES_NOT_PARSE for each in every),
        unreadable=sum(each.fault == CANNOT_BE_READ for each in every),
        longest=longest,
    )


def differences(ours: Mapping[str, FileFacts], theirs: Mapping[str, FileFacts]) -> list[str]:
    """Return the paths, ascending, whose facts are missing on one side or not the same on both."""
    return sorted(path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path))
