"""Coordinate several bridges (C1 to C10): each keeps all pending work, and they take turns per queue.

A bridge that dies, sleeps, misreports its room or is cut off changes the cost, never the safety. A wake request stays
pending at every bridge that received it, until a receive settles it or a peer's message proves it settled.
"""
