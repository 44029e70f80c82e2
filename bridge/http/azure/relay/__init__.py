"""The rules of the relay: an Azure Queue endpoint elsewhere, with a bell on it."""
