"""KEDA's external scaler: pods that KEDA starts and ends are told of work as workers are (docs/scaling.md)."""
