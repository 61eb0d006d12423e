"""Will it fit? The memory that a training step takes, by what takes it, and the cheapest change that makes it fit.

``fit`` asks ``trainings`` for a model without elements, ``ways`` for the changes to try and ``profiles`` for the bytes
at each moment of a step; ``static_memory`` counts what is there all the time, and ``growth`` how large inputs may be.
For several ranks, ``tensor_parallel`` and ``pipeline`` make the model that one rank runs, ``sharding`` adds what FSDP2
holds, and ``stage_ranks`` tries the ways in each stage.
"""

from integrations.estimate.fit.answer import Fit, StageMemory, Way
from integrations.estimate.fit.oom import explain_oom
from integrations.estimate.fit.run import fit
from integrations.estimate.fit.static_memory import Standing

__all__ = ["Fit", "StageMemory", "Standing", "Way", "explain_oom", "fit"]
