"""Webhooks: wakes posted to addresses that the configuration names."""
