"""The command ``queuebell``."""
