"""The ways to hold a session with a listener, bridge half; each file has its twin in ``listeners/channels``."""
