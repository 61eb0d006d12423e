"""What an operator takes, in time and in memory of its own: by arithmetic, or measured on this machine."""
