"""What the OpenID provider of the tests serves, and what it says of people."""

from __future__ import annotations
