"""The hint for a missing extra fits how this copy was installed."""

from __future__ import annotations

from importlib import metadata

import pytest

from queuebell.bridge.brokers import extras
from queuebell.bridge.brokers.extras import hint

EDITABLE = b'{"url": "file:///srv/checkout", "dir_info": {"editable": true}}'
COPY = b'{"url": "file:///srv/checkout", "dir_info": {}}'
WHEEL = b'{"url": "https://files.example/queuebell.whl", "archive_info": {"hash": "x"}}'


@pytest.mark.parametrize(
    ("origin", "installer", "prefix", "said"),
    [
        (EDITABLE, "pip", "/srv/checkout/.venv", "pip install -e '.[sqs]' in the checkout"),
        (EDITABLE, "uv", "/srv/checkout/.venv", "uv pip install -e '.[sqs]' in the checkout"),
        (COPY, "pip", "/srv/env", "pip install '.[sqs]' in the checkout that this was installed from"),
        (COPY, "pip", "/h/.local/share/pipx/venvs/queuebell", "pipx install --force '.[sqs]' in the checkout that"),
        (COPY, "uv", "/h/.local/share/uv/tools/queuebell", "uv tool install --force '.[sqs]' in the checkout that"),
        (WHEEL, "pip", "/srv/env", "pip install 'queuebell[sqs]'"),
        (None, "uv", "/srv/env", "uv pip install 'queuebell[sqs]'"),
        (None, "", "/srv/env", "pip install 'queuebell[sqs]'"),
    ],
)
def test_the_hint_fits_the_way_of_installing(origin: bytes | None, installer: str, prefix: str, said: str) -> None:
    """An editable checkout stays editable; a copy, an index and a tool's environment have their own commands."""
    assert hint("sqs", origin, installer, prefix).startswith(said)
    assert "/srv/checkout" not in hint("sqs", origin, installer, prefix)


def test_this_copy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's record decides; a checkout that was never installed gets an editable install."""
    extras.install.cache_clear()
    assert "install" in extras.install("mqtt") and "[mqtt]" in extras.install("mqtt")

    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    extras.install.cache_clear()
    monkeypatch.setattr(metadata, "distribution", missing)
    assert extras.install("mqtt") == "pip install -e '.[mqtt]' in the checkout"
    extras.install.cache_clear()
