"""All that aiohttp keeps private and that this project leans on, by names of its own; nothing else touches any of it.

Whoever takes another release of aiohttp reads these two files, and runs
`tests/bridge/http/server/test_aiohttp_private.py`, which holds each assumption to the release that is installed, with
both of its parsers. The pin in ``pyproject.toml`` is as narrow as they are. They are two because no worker should load
aiohttp's server, and stand here because this is the lowest room that speaks HTTP.
"""
