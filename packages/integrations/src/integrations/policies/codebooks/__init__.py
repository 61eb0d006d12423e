"""Step tables: derivatives of activations in few bits, fitted, shipped, and as codecs (FewBit)."""
