"""Serve KEDA's external scaler, which tells Kubernetes how many workers a queue needs.

`KedaServer` answers gRPC calls behind `Gateway`, with a queue's demand (`work`) and with streams that report whether
it is active (`KedaStreams`).
"""
