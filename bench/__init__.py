"""What Queuebell's figures are, measured on the machine at hand: ``python -m bench``.

Every target is a ratio against something that runs beside it, in the same run and in turns with it, so that a slow
machine or a busy minute weighs on both. Nothing here is a test: a figure that misses its target is written down as
missed.
"""
