"""Following a plan operator by operator, and repeating operators in backward."""
