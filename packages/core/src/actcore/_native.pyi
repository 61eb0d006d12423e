from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

torch_version: str
compiler: str
cuda_version: str
cuda_architectures: str

def cpu_kernels() -> str: ...
def runnable_cpu_kernels() -> list[str]: ...
def philox(seed: int, stream: int, block: int) -> tuple[int, int, int, int]: ...
def allocate(
    costs: list[list[float]], nbytes: list[list[int]], budget: int, max_steps: int
) -> tuple[list[int], float, bool, int]: ...
def fit_steps(
    values: list[float], weights: list[float], pieces: list[int]
) -> list[tuple[list[int], list[float], float]]: ...
def fit_levels(
    values: list[float], weights: list[float], candidates: list[float], counts: list[int]
) -> list[tuple[list[int], float]]: ...
def find_segments(
    nbytes: list[int], edges: list[tuple[int, int]], max_steps: int
) -> tuple[list[int], int, int, int, int]: ...
def bind_calls(given: dict[str, object]) -> None: ...
def bind_replay(given: dict[str, object]) -> None: ...
def bind_tape(given: dict[str, object]) -> None: ...
def followed(
    tape: object, operator: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any], /
) -> Any: ...
def tracked(
    tracker: object,
    function: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    run: Callable[[Any], object] | None,
    /,
) -> Any: ...
def unpack(packed: object) -> Tensor: ...

class Replay:
    def __init__(self, **given: object) -> None: ...
    def pack(self, tensor: Tensor) -> Any: ...
    def note(self, site: object) -> bool: ...

class TrainingStep:
    def __init__(
        self,
        nbytes: list[int],
        reuses: list[int],
        until: list[int],
        reads: list[list[int]],
        makes: list[list[int]],
        seconds: list[float],
        repeatable: list[int],
        scratch: list[int],
        backward: list[list[int]],
        other: list[int],
        forms: list[list[tuple[int, int, int, float, float, float, bool]]],
        weights: list[float],
        aside: list[int],
        stored_at: list[int],
        formed: list[bool],
    ) -> None: ...

def simulate(
    step: TrainingStep, ranks: list[int], forms: list[int]
) -> tuple[int, int, float, float, list[int], list[int], list[int]]: ...
def find_plans(
    step: TrainingStep, max_steps: int, variance: float
) -> tuple[list[tuple[list[int], list[int], bool, int, float, float]], bool, int]: ...
def least_peak_bound(step: TrainingStep, variance: float) -> int: ...
def least_seconds_bounds(step: TrainingStep, budgets: list[int], variance: float) -> list[float]: ...
