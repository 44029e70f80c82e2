"""Receive, lease, run, settle and dead-letter messages: the way of a message through a worker.

`Dequeue` receives, `Holding` keeps what was received, `Invoker` calls the handler, `verdict` decides what happens to
the message, `Settlements` tells the store, and `DeadLettering` moves a message to its poison queue.
"""
