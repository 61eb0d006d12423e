"""Norms of one's own: how a norm's statistics follow from its input.
``docs/reference/operators.md`` has an example.
"""

from integrations.policies.norms import Normalizer
from integrations.policies.standardizing import CHANNELS

__all__ = ["CHANNELS", "Normalizer"]
