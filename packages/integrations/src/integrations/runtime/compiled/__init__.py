"""A forward that torch compiles, of which the same is kept."""
