"""``Ranks``: how many processes share a training, and how."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ranks:
    """The sizes of a device mesh, and the micro-batches of a step.

    Attributes:
        fsdp: ranks that shard parameters, gradients and optimizer states with FSDP2.
        tp: ranks that share each layer by tensor parallelism.
        pp: stages of the pipeline.
        micro_batches: how many batches a step sends through the pipeline.
    """

    fsdp: int = 1
    tp: int = 1
    pp: int = 1
    micro_batches: int = 1

    @classmethod
    def of(cls, fsdp: int, tp: int, pp: int, micro_batches: int | None) -> Ranks:
        """Return the ranks of a mesh, with as many micro-batches as stages unless given.

        Raises:
            ValueError: ``micro_batches`` is given without a pipeline, or is less than the number of stages.
        """
        if pp == 1 and micro_batches not in (None, 1):
            raise ValueError(
                f"micro_batches must be left out without a pipeline (pp=1), got {micro_batches}; batch= is the batch "
                "of one forward, and accumulate=True says that steps accumulate gradients"
            )
        if micro_batches is not None and micro_batches < pp:
            raise ValueError(f"micro_batches must be at least pp={pp} for a 1F1B schedule, got {micro_batches}")
        return cls(fsdp, tp, pp, pp if micro_batches is None else micro_batches)

    @property
    def count(self) -> int:
        """The number of processes."""
        return self.fsdp * self.tp * self.pp
