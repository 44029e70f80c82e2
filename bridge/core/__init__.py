"""Decide when to wake which session, as pure rules that take time and randomness as arguments.

`WakeScheduler` composes `Dispatch` (assigns `PendingWork` to a `SessionQueue`), `EmbeddedQueues` and the cluster's
`Coordinator`. Nothing here imports asyncio, time, random or a socket.
"""
