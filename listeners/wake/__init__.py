"""Decide when a listener receives; pure rules, without a clock, chance, an event loop or a socket.

`Controller` is the wake machine of one queue, `CheckTimers` and `DeadMan` say when it checks by itself, and `Sharing`
divides the handler slots of a pool.
"""
