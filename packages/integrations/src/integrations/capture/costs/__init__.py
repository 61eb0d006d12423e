"""What an operator takes in time and in scratch memory: by arithmetic, or measured on this machine."""
