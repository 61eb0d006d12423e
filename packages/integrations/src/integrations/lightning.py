"""Compression for Lightning's Trainer.

from integrations.lightning import CompressionCallback

trainer = Trainer(callbacks=[CompressionCallback(level="L1")])
"""

from integrations.api.trainers.lightning import CompressionCallback

__all__ = ["CompressionCallback"]
