"""``schedule_for_budget``: how inductor schedules graphs that have a budget, so that their peaks are the counted ones.

While such a graph is compiled, inductor works otherwise in four ways:

- A buffer is freed when it was read for the last time. By itself inductor keeps it for a later result of the same size
  where that does not raise the peak, as it estimates it. The estimate has less than what is alive, and the step of a
  Llama took 1.16 times its budget.
- A fused kernel is put where the last of its operators was, unless inductor estimates a smaller peak for another order
  (``reorder_for_peak_memory``). By itself inductor puts it where the first was, and what the others need before it. A
  kernel with sums of several layers then has the backward of all these layers run first, while what their weights'
  gradients read stays alive. The step of a DiT took 1.48 times its budget.
- Operators that read the same are joined in one kernel only where nothing is alive for longer (``fusing``). The step of
  a Gemma took 1.12 times the bytes that were counted.
- On a CPU, a buffer is freed behind the kernel that reads it last. By itself inductor makes one C++ function of kernels
  that follow each other, with the buffers of all of them alive at once. The step of a ResNeXt took 1.28 times its
  budget.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch.fx import Node

from integrations._utils.torch_internals import (
    AFTER_FUSION,
    REUSE,
    callback_handler,
    custom_scheduler_pass,
    inductor_config,
    inductor_virtualized,
)
from integrations.runtime.compiled.fusing import find_lasting, is_ours, make_choices

_here = threading.local()
"""What is changed in this thread: in ``changed``, by setting, the user's value and ours; in ``choices``, the user's."""

_lazy: set[str] = set()  # torch's ids of graphs whose backward may be compiled later, by their first backward


def schedule_for_budget() -> None:
    """Changes inductor's settings until the graph is compiled that dynamo compiles now, and again for its backward."""
    handler = callback_handler()
    if handler is None:
        return
    if _start not in handler.start_callbacks:  # torch.compiler.reset() removes both
        handler.register_start_callback(_start)
    if _end not in handler.end_callbacks:
        handler.register_end_callback(_end)
    _change()


def order_by_last_member(nodes: list[Any], places: Mapping[Node, int] = MappingProxyType({})) -> list[Any]:
    """Sorts inductor's scheduler nodes so that a fused one comes where the last of its members was.

    Inductor makes the buffer of an operator only where something needs it in memory, and has its place there. If that
    is far behind, what the operator reads would be alive until then, so the operator's own place counts. An operator
    that reads nothing, such as zeros, is left where its result is needed.

    Args:
        nodes: ``BaseSchedulerNode``s with ``min_order`` and ``max_order``, the places of their first and last member
            among the buffers, each after those that it depends on.
        places: by operator, its place in the graph that inductor compiles.
    """
    last = dict(zip(map(id, nodes), _find_places(nodes, places), strict=True))
    makers = {name: place for place, node in enumerate(nodes) for name in node.get_buffer_names()}
    readers: list[list[int]] = [[] for _ in nodes]
    waits = []
    for place, node in enumerate(nodes):
        needed = {makers[one.name] for one in node.unmet_dependencies if one.name in makers} - {place}
        waits.append(len(needed))
        for maker in needed:
            readers[maker].append(place)
    ready = [(*last[id(node)], place) for place, node in enumerate(nodes) if not waits[place]]
    heapq.heapify(ready)
    found = []
    while ready:
        place = heapq.heappop(ready)[-1]
        found.append(nodes[place])
        for reader in readers[place]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, (*last[id(nodes[reader])], reader))
    return found if len(found) == len(nodes) else nodes  # where two depend on each other, both would be missing


def _find_places(nodes: list[Any], places: Mapping[Node, int]) -> list[tuple[int, int]]:
    """By node: the place of its last operator, and that of its last buffer, by which buffers of one operator are in
    order."""
    found, before = {}, -1
    for node in sorted(nodes, key=lambda node: node.max_order):
        members = node.get_nodes() if node.read_writes.reads else ()
        made = [operator for member in members for operator in getattr(member.node, "origins", ())]
        before = max((places[one] for one in made if one in places), default=before)  # copies may be of no operator
        found[id(node)] = before, node.max_order
    return [found[id(node)] for node in nodes]


def _free_between_kernels(nodes: list[Any]) -> None:
    """Has the C++ backend end a function where a kernel has read something for the last time.

    Args:
        nodes: inductor's scheduler nodes.
    """
    on_cpu = next((node for node in nodes if (device := node.get_device()) is not None and device.type == "cpu"), None)
    if on_cpu is None:
        return
    scheduler, lasting = on_cpu.scheduler, find_lasting()
    backend = scheduler.get_backend(on_cpu.get_device())  # of this graph alone
    is_full = backend.ready_to_flush

    def is_ready() -> bool:
        return is_full() or not lasting.issuperset(scheduler.current_node.last_usage)

    backend.ready_to_flush = is_ready


def _schedule(nodes: list[Any]) -> list[Any]:
    """What inductor calls after fusion."""
    _free_between_kernels(nodes)
    return order_by_last_member(
        nodes, {node: place for place, node in enumerate(inductor_virtualized().graph.graph.nodes)}
    )


@cache
def hash_sources() -> str:
    """What tells torch's caches of another version of this package, which may count and order otherwise."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@cache
def _get_pass_type() -> Any:
    """The class of what inductor calls after fusion, for its cache to know; importing it imports inductor. ``None``
    where torch has none."""
    base = custom_scheduler_pass()
    if base is None:
        return None

    class Schedule(base):  # type: ignore[misc,valid-type]
        """``_schedule``, after a pass of the user's."""

        def __init__(self, users: Any) -> None:
            self._users = users

        def __call__(self, nodes: list[Any]) -> list[Any]:
            return _schedule(nodes if self._users is None else self._users(nodes))

        def uuid(self) -> str:
            """What tells torch's caches of this order."""
            return f"{hash_sources()} {None if self._users is None else self._users.uuid()}"

        def __reduce__(self) -> Any:
            return _make_pass, (self._users,)

    return Schedule


def _make_pass(users: Callable[[list[Any]], list[Any]] | None) -> Any:
    """What inductor calls after fusion.

    Args:
        users: the user's own pass, which runs first; ``None`` if there is none.
    """
    kind = _get_pass_type()
    if kind is not None and (users is None or isinstance(users, custom_scheduler_pass())):
        return kind(users)
    if users is None:
        return _schedule
    return partial(_schedule_after, users)  # which torch's cache does not store, as it does not store the user's own


def _schedule_after(users: Callable[[list[Any]], list[Any]], nodes: list[Any]) -> list[Any]:
    return _schedule(users(nodes))


def _is_ours(found: Any) -> bool:
    """Whether another thread has changed the setting, where a version of torch has one for all threads."""
    kind = _get_pass_type()
    ours = isinstance(found, partial) and found.func is _schedule_after
    return ours or found is _schedule or (kind is not None and isinstance(found, kind))


def _change() -> None:
    """Changes the settings, as far as this version of torch has them and they are not changed yet."""
    settings, changed = inductor_config(), getattr(_here, "changed", {})
    if getattr(settings, REUSE, False):
        changed = _here.changed = {**changed, REUSE: (True, False)}
        setattr(settings, REUSE, False)
    if hasattr(settings, AFTER_FUSION) and not _is_ours(users := getattr(settings, AFTER_FUSION)):
        ours = _make_pass(users)
        _here.changed = {**changed, AFTER_FUSION: (users, ours)}
        setattr(settings, AFTER_FUSION, ours)
    virtualized = inductor_virtualized()
    if virtualized is not None and not is_ours(choices := virtualized.choices):
        _here.choices = choices
        virtualized.set_choices_handler(make_choices(choices))  # from now on; the context that it returns puts it back


def _put_back() -> None:
    """Puts the user's settings back, as far as torch has not done it."""
    settings, changed = inductor_config(), getattr(_here, "changed", {})
    _here.changed = {}
    for name, (users, ours) in changed.items():
        if getattr(settings, name) is ours:
            setattr(settings, name, users)
    choices, _here.choices = getattr(_here, "choices", None), None
    if choices is not None and is_ours(inductor_virtualized().choices):
        inductor_virtualized().set_choices_handler(choices)


def _is_lazy(given: Any) -> bool:
    return getattr(given.callback_trigger, "name", "") == "LAZY_BACKWARD"


def _start(given: Any) -> None:
    """Called by torch where a compilation starts."""
    _put_back()  # torch does not tell this thread of a compilation's end while another thread compiles
    if not _is_lazy(given):
        _lazy.discard(given.compile_id)  # torch gives ids anew after torch.compiler.reset()
    elif given.compile_id in _lazy:
        _change()


def _end(given: Any) -> None:
    """Called by torch where a compilation has ended, or failed."""
    if getattr(_here, "changed", {}) or getattr(_here, "choices", None) is not None:
        _put_back()
        if not _is_lazy(given):
            _lazy.add(given.compile_id)
