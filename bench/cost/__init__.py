"""What waiting costs: the wake rules and the back-offs played through a day, each receive counted and paid for."""
