"""How one saved tensor is stored: extents, regions of memory, forms of one operator's own, records."""
