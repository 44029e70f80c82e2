"""What ``kubectl kustomize`` makes of a folder, as far as deploy/kubernetes uses it: a word beyond that is refused.

Compared by hand with the real one. It is no package of any index that tests are installed from.
"""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Mapping
from typing import Any, Final

import yaml

KEYS: Final = {"apiVersion", "kind", "namespace", "labels", "resources", "components", "patches"}
MERGED_BY: Final[Mapping[str, str]] = {"containers": "name", "env": "name", "volumes": "name"}
"""Lists whose elements a patch finds by a key."""
PORTS: Final = ("containerPort", "port")
CLUSTER_WIDE: Final = {"Namespace"}

Document = dict[str, Any]


def build(folder: pathlib.Path) -> list[Document]:
    """Return all documents of a folder. Raises `AssertionError` for what the real one would refuse or pass over."""
    words = _read(folder / "kustomization.yaml")[0]
    unknown = set(words) - KEYS
    assert not unknown, f"{folder.name}: kustomization.yaml says {sorted(unknown)}"
    documents: list[Document] = []
    listed = {"kustomization.yaml"}
    for name in words.get("resources", []):
        documents += _of(folder, name)
        listed.add(name)
    for name in words.get("components", []):
        assert _read(folder / name / "kustomization.yaml")[0]["kind"] == "Component", name
        documents += build(folder / name)
    for patch in words.get("patches", []):
        listed.add(patch["path"])
        for change in _read(folder / patch["path"]):
            _patch(documents, change, f"{folder.name}/{patch['path']}")
    forgotten = {file.name for file in folder.iterdir() if file.is_file()} - listed
    assert not forgotten, f"{folder.name}: {sorted(forgotten)} are named by no kustomization"
    for document in documents:
        if "namespace" in words and document["kind"] not in CLUSTER_WIDE:
            document["metadata"]["namespace"] = words["namespace"]
        for each in words.get("labels", []):
            assert each["includeTemplates"] and not each["includeSelectors"]
            document["metadata"].setdefault("labels", {}).update(each["pairs"])
            template = document.get("spec", {}).get("template")
            if template is not None:
                template["metadata"].setdefault("labels", {}).update(each["pairs"])
    names = [(each["kind"], each["metadata"]["name"]) for each in documents]
    assert len(set(names)) == len(names), f"{folder.name}: a name stands twice"
    return documents


def _of(folder: pathlib.Path, name: str) -> list[Document]:
    path = folder / name
    assert path.exists(), f"{folder.name}: {name} is not there"
    return build(path.resolve()) if path.is_dir() else _read(path)


def _read(file: pathlib.Path) -> list[Document]:
    return [each for each in yaml.load_all(file.read_text("utf-8"), yaml.CSafeLoader) if each is not None]


def _patch(documents: list[Document], change: Document, where: str) -> None:
    same = [
        each
        for each in documents
        if (each["kind"], each["metadata"]["name"]) == (change["kind"], change["metadata"]["name"])
    ]
    assert len(same) == 1, f"{where}: patches {change['kind']} {change['metadata']['name']}, which is not there"
    _merge(same[0], change)


def _merge(whole: Document, change: Document) -> None:
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(whole.get(key), dict):
            _merge(whole[key], value)
        elif isinstance(value, list) and isinstance(whole.get(key), list):
            _merge_list(key, whole[key], value)
        else:
            whole[key] = copy.deepcopy(value)


def _merge_list(key: str, whole: list[Any], change: list[Any]) -> None:
    for element in reversed(change):
        by = MERGED_BY.get(key) or next(port for port in PORTS if key == "ports" and port in element)
        same = [each for each in whole if each[by] == element[by]]
        if same:
            _merge(same[0], element)
        else:
            whole.insert(0, copy.deepcopy(element))  # what is new stands before what there was
