"""What KEDA is told of a queue: how much work there is, and when it is said; pure."""
