"""Wires from the client's side: one connection to a bridge that carries calls and a session (docs/channels.md)."""
