"""Who may do what with which queues: keys, tokens, certificates, grants, limits, sign-in; each rule beside its shell.

`AccessWatch` reads the access file and follows its changes. It turns a secret into a `Principal` with grants (`Reach`)
and gives each connection a `Permit`. `QuotaGuard` holds what a principal may store, `Tokens` and `Login` speak with
issuers.
"""
