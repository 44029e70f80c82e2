"""Keeps what does not fit into a queue: large bodies and the ledger's entities.

`ClaimCheck` replaces a large body by a claim and keeps the body in a `BlobStore` (`blobs/`). A `TableStore` (`tables/`)
keeps small entities with ETags.
"""
