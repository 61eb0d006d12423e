from collections.abc import Callable, Mapping, Sequence
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
def bind_checkpoints(given: dict[str, object]) -> None: ...
def kernels(path: str, dtypes: dict[Any, int]) -> dict[str, Kernel]: ...
def bind_replay(given: dict[str, object]) -> None: ...
def bind_follow(given: dict[str, object]) -> None: ...
def bind_segments(given: dict[str, object]) -> None: ...
def bind_tape(given: dict[str, object]) -> None: ...
def followed(
    tape: object, operator: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any], /
) -> Any: ...
def restore(packed: object) -> Tensor: ...
def recompute(recomputed: Any, /) -> Tensor: ...
def hold_operand(operand: Any, /) -> tuple[Any, int] | None: ...
def hold_operands(formula: Any, /) -> Any: ...
def unpack(packed: object) -> Tensor: ...
def hold(holders: dict[int, str], held: list[Any], tensor: Tensor, holder: str, first: bool, /) -> bool: ...
def packing(fallback: Callable[[Any], Any]) -> Callable[[Any], Any]: ...
def unpacking(fallback: Callable[[Any], Any]) -> Callable[[Any], Any]: ...
def enter(pack: Pack | None) -> Pack | None: ...
def watch(unpack: Callable[[Any], Tensor] | None) -> Callable[[Any], Tensor] | None: ...

class FollowedCalls:
    last: Any
    replay: Replay | None
    at: int
    nodes: int
    stopped: bool
    def __init__(
        self,
        expected: tuple[Any, ...],
        values: dict[int, int],
        makers: dict[int, tuple[bool, int]],
        segments: dict[tuple[bool, int], Any],
        pending: list[Any],
        hidden: dict[int, Tensor],
        read: dict[Any, Any],
        modes: int,
        /,
    ) -> None: ...
    def handle(self, tensor: Tensor, later: Any = None, /) -> Handle | None: ...
    def running(self) -> Any: ...

class Handle:
    segment: Any
    value: int
    geometry: Any
    later: Any
    stored: Any
    shares: bool
    def __init__(
        self, segment: RepeatedSegment, value: int, tensor: Tensor, later: Any = None, shares: bool = False
    ) -> None: ...
    def unpack(self) -> Tensor: ...
    def get(self) -> Tensor: ...
    def prepare(self) -> None: ...

class RepeatedSegment:
    model: Any
    double: Any
    rounded: bool
    calls: Any
    given: list[Any]
    programs: dict[Any, Any] | None
    becomes: dict[int, int]
    handles: dict[int, int]
    waiting: dict[int, list[Any]]
    stored: dict[str, Any]
    made: dict[int, Tensor]
    done: int
    def __init__(
        self,
        model: Any = None,
        double: Any = None,
        rounded: bool = False,
        calls: Sequence[Any] = (),
        given: int = 0,
        programs: dict[Any, Any] | None = None,
        /,
    ) -> None: ...
    def advance(self, done: int, changes: tuple[tuple[int, int], ...] = (), /) -> None: ...

class NotedCalls:
    before: Sequence[Any]
    noted: list[Any]
    formulas: dict[int, Any]
    entries: dict[int, Any]
    exposed: dict[int, Any]
    parts: dict[int, Any]
    holders: dict[int, str]
    put: Callable[..., None]
    last: Any
    fully: bool

class Calls:
    call: Any
    foreign: Any
    born: Any
    checkpoints: Any
    watcher: Any
    over: Any
    def tracked(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        run: Callable[[Any], object] | None,
        /,
    ) -> Any: ...
    def described(
        self, function: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> Any: ...

class Kernel:
    def __call__(self, *args: Any) -> Any: ...

class Pack:
    replay: Replay | None
    def __init__(self, whole: Callable[[Tensor], Any], anew: Callable[[Tensor], Any], /) -> None: ...
    def __call__(self, tensor: Tensor) -> Any: ...

class Replay:
    def __init__(self, **given: object) -> None: ...
    def pack(self, tensor: Tensor) -> Any: ...
    def hold(self, site: object, tensor: Tensor, /) -> Any: ...
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
