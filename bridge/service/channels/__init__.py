"""Implement the bridge's half of the session channels; ``listeners/session`` has the other half."""
