"""Training steps on fake CUDA tensors where there is no GPU: autograd's engine in Python.

torch's own engine asks the driver for streams before it runs any node of a device, so it cannot start there.
"""

import heapq
from collections import Counter
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

import pytest
import torch


@torch.no_grad()
def backward(root, *_, **__):
    """What ``Tensor.backward`` of a scalar does, node after node as torch's engine does it."""
    start, gradient = root.grad_fn, torch.ones_like(root)  # which the caller holds to the end
    with torch._C._DisableTorchDispatch():
        root.detach_()  # the caller has it, and with it would have all that was saved
    missing = _dependencies(start)
    given = {start: {0: gradient}}
    ready, tie = [(0, 0, start)], count(1)
    del start
    while ready:
        node = heapq.heappop(ready)[2]
        missing.pop(node, None)
        edges, number = list(node.next_functions), len(node._input_metadata)
        inputs = [given[node].get(place) for place in range(number)]
        del given[node]
        with _current(node.name(), node._sequence_nr()):
            results = _run(node, inputs)
            del inputs
            for place, (follower, to) in enumerate(edges):
                if follower is not None and results[place] is not None:
                    results[place] = _fitted(results[place], follower._input_metadata[to])
            del node  # and what it saved
            for follower, to in edges:
                result = results.pop(0)
                if follower is None:
                    continue
                gradients = given.setdefault(follower, {})
                if result is not None:
                    gradients[to] = gradients[to] + result if to in gradients else result
                del result
                missing[follower] -= 1
                if not missing[follower]:
                    # Nodes that came later run first, and before all of them those that accumulate.
                    heapq.heappush(ready, (-follower._sequence_nr(), next(tie), follower))
        edges.clear()
        follower = None


def _run(node, inputs):
    """Called from Python, a node that accumulates would copy the gradient: somebody else has it, too."""
    if not callable(node):
        return _run_function(node, inputs)
    if not hasattr(node, "variable"):
        results = node(*inputs)
        return list(results) if isinstance(results, tuple) else [results]
    leaf, [gradient] = node.variable, inputs
    leaf.grad = gradient if leaf.grad is None else leaf.grad.add_(gradient)
    for hook in (leaf._post_accumulate_grad_hooks or {}).values():
        hook(leaf)
    return []


def _run_function(node, inputs):
    """Run the node of a ``Function`` in Python. Its edges belong to the tensor arguments."""
    results = node.apply(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    wanted = iter([result for result, needs in zip(results, node.needs_input_grad, strict=True) if needs])
    return [None if follower is None else next(wanted) for follower, _ in node.next_functions]


@contextmanager
def _current(name, number):
    node = SimpleNamespace(name=lambda: name, _sequence_nr=lambda: number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("integrations.capture.backward.current_autograd_node", lambda: node)
        yield


def _dependencies(start):
    found, todo, seen = Counter(), [start], {start}
    while todo:
        for follower, _ in todo.pop().next_functions:
            if follower is not None:
                found[follower] += 1
                if follower not in seen:
                    seen.add(follower)
                    todo.append(follower)
    return found


def _fitted(gradient, like):
    if tuple(gradient.shape) != tuple(like.shape):
        gradient = gradient.sum_to_size(like.shape)
    return gradient if gradient.dtype == like.dtype else gradient.to(like.dtype)
