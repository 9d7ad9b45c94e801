"""Training of teams of learning agents."""
