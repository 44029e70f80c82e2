"""The demo: the white paper's scenario on real files, with real processes.

A process initiator puts work on a queue, worker processes are woken by it, a process controller adds up what they
found; then everything is compared with the same work done directly, and the bill is shown.
"""
