"""Control access to queues: keys, tokens, certificates, grants, limits and sign-in.

`AccessWatch` reads the access file and follows its changes. It resolves a secret to a `Principal` with grants (`Reach`)
and gives each connection a `Permit`. `QuotaGuard` enforces quotas; `Tokens` and `Login` connect to issuers.
"""
