"""The producer's side: puts messages to a store and tells a bridge that a queue has work.

`Publisher` sends triggers over one of the ``buses/`` and repeats them until a bridge has them; `PublishingQueue` puts
and publishes; `PartitionedQueue` spreads one queue over several; `BlockingStore` is for code without an event loop;
``outbox/`` puts what a database transaction has committed.
"""
