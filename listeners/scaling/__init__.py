"""Start and end worker processes as the work in a queue grows and shrinks.

`Scaler` is what users run. `ScaledQueue` and `Processes` are its rules, `QueueScaler` carries them out, and an
`Actuator` starts and ends the processes.
"""
