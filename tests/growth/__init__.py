"""No cost grows faster than its work: operations counted at 100 and at 10,000 of each thing."""
