"""One program for each system of ``python -m bench peers``: a task and its producer, as its own documentation has them.

``SERVER`` in the environment is the address of its server. Each stands in one file, so that its lines can be counted;
`sample` and its call belong to the bench, and stand in all of them alike. ``producing`` yields what puts one task.
"""
