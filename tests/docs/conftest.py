"""Processes that end with their test."""

from tests.readme.conftest import processes

__all__ = ["processes"]
