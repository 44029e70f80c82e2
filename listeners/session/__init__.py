"""Hold the session with the bridge: what it sends and receives, over which channel, and when the bridge counts as gone.

`Session` and `Liveness` are in `session.py`, `Channel` and `Link` in `channel.py`; `opening.py` opens the store, the
channel and the publisher that a listener was given.
"""
