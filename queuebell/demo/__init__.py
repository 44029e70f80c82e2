"""The demo: the source files of Python's standard library, analysed by worker processes that a queue wakes."""
