"""What a dispatch mode has to know of the operators that it sees: their effects, and the memory of their tensors."""
