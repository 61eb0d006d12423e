"""Random sketches of a matrix of tokens: ``S X`` with a random ``S`` of fewer rows, made from a seed block by block."""

from integrations.fewbit.sketches.keys import drawn_key, seeded_key
from integrations.fewbit.sketches.operators import Run, lift, project, runs
from integrations.fewbit.sketches.options import KINDS, Sketching
from integrations.fewbit.sketches.sampling import sample_features, sample_tokens
from integrations.fewbit.sketches.storage import storage

__all__ = [
    "KINDS",
    "Run",
    "Sketching",
    "drawn_key",
    "lift",
    "project",
    "runs",
    "sample_features",
    "sample_tokens",
    "seeded_key",
    "storage",
]
