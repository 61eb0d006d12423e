"""What is found of an operator, as a record of ``--record FILE`` has it."""

from __future__ import annotations

from dataclasses import dataclass, field

ROUNDED, EXACT, KEPT = "rounded", "exactly in fewer bits", "kept"


@dataclass(frozen=True)
class Saved:
    """How tensors of one operator and role are stored at the level, and the report's reason."""

    operator: str
    role: str
    store: str
    why: str


@dataclass(frozen=True)
class Operated:
    """One operator in one form.

    Attributes:
        name, form, dtype: of the subject.
        does_not_apply: why it was not run; empty where it was.
        samples: that were compared.
        left_out: by reason, samples that were not.
        planned: samples whose exact plan was followed, too.
        recomputed: those of them of which the plan has something recomputed.
        saved: each operator, role and store that came up at the level.
        rounded: samples with another gradient at the level.
        bounds: by bound on that one, the largest share of it; at most 1 where it holds.
        error: the largest of the whole gradient at the level, relative.
        wrong: by what was wrong, samples.
    """

    name: str
    form: str
    dtype: str
    does_not_apply: str = ""
    samples: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    planned: int = 0
    recomputed: int = 0
    saved: list[Saved] = field(default_factory=list)
    rounded: int = 0
    bounds: dict[str, float] = field(default_factory=dict)
    error: float = 0.0
    wrong: dict[str, int] = field(default_factory=dict)
