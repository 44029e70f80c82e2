"""The ways triggers reach a bridge other than HTTP: brokers and databases, on supervised connections.

`Attachments` holds them all: an `Attachment` for each broker, whose triggers an `Intake` reads, and a
`PostgresListener` for each database. `SupervisedConnection` keeps each connection open; `Republisher` and
`BrokerClusterLink` connect a bridge to other bridges.
"""
