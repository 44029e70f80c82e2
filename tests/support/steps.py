"""How much work a call is, counted in bytecodes: the same on every run of one Python, whatever the machine does."""

from __future__ import annotations
