"""The rules of several bridges (C1 to C10): each owes every queue by itself, and for each queue they take turns.

A bridge that dies, sleeps, lies about its room or is cut off changes what things cost, never whether they are safe: a
mark stands at every bridge that heard of it, and is forgiven only for what a peer's word proves.
"""
