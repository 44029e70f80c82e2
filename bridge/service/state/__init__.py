"""Report the bridge's state, findings and explanations, from the scheduler only; calls no store, changes nothing.

`status` builds the HTTP answers (structs in `answers`) and `overview` those of the page. `explain` predicts which
worker a trigger would wake, `check` finds problems, and `trouble` summarizes them in one line per queue.
"""
