"""Implement the bridge's half of the session channels; ``listeners/channels`` has the other half."""
