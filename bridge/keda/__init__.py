"""KEDA's external scaler: tells Kubernetes how many workers a queue needs.

`KedaServer` answers gRPC calls behind `Gateway`, with the demand of a queue (`work`) and streams that say whether it is
active (`Watching`).
"""
