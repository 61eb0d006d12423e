"""What a run of ``python -m bench operators`` records."""

from __future__ import annotations

from bench.results.entry import Entry, at, metric, nested, numbers, part, table
from bench.results.record import Kind

ROUNDED, EXACT, KEPT = "rounded", "exactly in fewer bits", "kept"


@numbers
class Saved:
    """How tensors of one operator and role are stored at the level."""

    operator: str = metric("", "the call that saves them", default="")
    role: str = metric("", "of the tensors in the call", default="")
    store: str = metric("", "kept, exactly in fewer bits, or rounded", default="")
    why: str = metric("", "the report's reason", default="")


@part("operator", "an operator of torch's database on that one's samples: plain, at L0, at a level, and under a plan")
class Operated(Entry):
    """One operator in one form."""

    name: str = at("below torch, with the database's variant")
    form: str = at("function, or in place")
    dtype: str = at("of the samples; empty where it has no gradient")
    samples: int = metric("", "that were compared", default=0)
    left_out: dict[str, int] = table("", "by reason, samples that were not: torch itself refuses or repeats nothing")
    planned: int = metric("", "samples whose exact plan was followed, too", default=0)
    recomputed: int = metric("", "those of them of which the plan has something recomputed", default=0)
    saved: list[Saved] = nested(Saved, "each operator, role and store that came up at the level", many=True)
    rounded: int = metric("", "samples with another gradient at the level", default=0)
    bounds: dict[str, float] = table("", "by bound on that one, the largest share of it; at most 1 where it holds")
    error: float = metric("", "the largest of the whole gradient at the level, relative", default=0.0)
    wrong: dict[str, int] = table("", "by what was wrong, samples")

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.failure and not self.wrong


KIND = Kind(
    "operators",
    (Operated,),
    {
        "level": "level",
        "samples": "most samples of an operator",
        "planned": "most samples that a plan is followed with",
        "seed": "seed",
    },
)
