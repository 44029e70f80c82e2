"""The whole system in virtual time: the real bridge and listeners, a network that fails, and a seed that repeats it."""
