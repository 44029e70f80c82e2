"""Write the reference: `python -m tests.reference`, wherever a route, a struct, a limit or a code has changed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from tests.reference import asyncapi
from tests.reference.openapi.document import described
from tests.support.command import ROOT

OPENAPI: Final = ROOT / "docs" / "reference" / "openapi.yaml"
SERVED: Final = ROOT / "bridge" / "http" / "api" / "openapi.json"
ASYNCAPI: Final = ROOT / "docs" / "reference" / "asyncapi.yaml"


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)


def written(document: dict[str, Any], title: str) -> str:
    text = yaml.dump(document, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)
    return f"# {title} Made from the code by `python -m tests.reference`: edit it there.\n{text}"


FILES: Final[dict[Path, Callable[[], str]]] = {
    OPENAPI: lambda: written(described(), "Every call of a bridge over HTTP."),
    SERVED: lambda: msgspec.json.encode(described()).decode(),
    ASYNCAPI: lambda: written(asyncapi.described(), "The buses of a bridge, its sessions and its channels of wakes."),
}

if __name__ == "__main__":
    for file, text in FILES.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text(), encoding="utf-8")
        sys.stdout.write(f"{file}\n")
