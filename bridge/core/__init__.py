"""The bridge's rules: pure, with time and chance as arguments.

``bell.py`` composes them; every other file keeps one noun. Nothing here imports asyncio, time, random or a socket.
"""
