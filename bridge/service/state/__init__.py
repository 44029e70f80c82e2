"""What a bridge shows of itself: state, findings, explanations. It reads the rules, asks no store and changes nothing.

`status` makes the answers of HTTP from the rules (structs in `answers`), `overview` the page's, `explain` says which
worker a trigger would wake, `check` judges what is wrong, and `trouble` puts that in one line a queue.
"""
