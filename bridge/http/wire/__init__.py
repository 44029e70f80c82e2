"""Wires: WebSockets of clients, each with their calls and at most one session."""
