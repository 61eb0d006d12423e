"""The estimator: how much each tensor's rounding changes the gradient, from one ordinary backward pass.

A node's backward is linear in the gradient that it gets, so it may be called once more, from a hook that runs when
autograd has called it:

* with that gradient's signs drawn at random, which shows by what factor the node passes on the energy of an incoherent
  error to each node below (its gains);
* with a saved tensor perturbed by noise as large as its rounding error, which shows what that error adds to the node's
  results (its effects).

The gains, multiplied down the graph and summed over all ways into a parameter, give the energy in the parameters'
gradients for a unit of energy at each node; with the effects they give each tensor's cost. For a tensor that only
enters a weight's gradient, as a linear layer's input does, the effect is the cost, and nothing is modelled but the
noise. An error that goes on into the gradients below is followed through a few nodes, exactly, and by the gains from
there on, as if it had no structure left and what comes by different ways were uncorrelated.

This needs no other pass, but some more calls of each node, in the step that is measured and no other (it takes 8 to 14
times as long, seen with a GCN, BERT, ResNet-18 and a small MLP on a CPU), and the memory of some gradients of
activations in 8 bits (``errors.py``). GACT (Liu et al., ICML 2022, Algorithm 1) needs passes in proportion to the
number of tensors (``two_seed.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from actcore import GroupAffine, SavedTensor, stream_of
from integrations._utils.torch_internals import DisableTorchFunction, current_autograd_node, queue_callback
from integrations.planner.sensitivity.errors import Error
from integrations.planner.sensitivity.graph import NOWHERE, PARAMETER, AutogradGraph, derive_backward
from integrations.planner.sensitivity.identity import Identity
from integrations.planner.sensitivity.measurement import Measurement, Sensitivity
from integrations.planner.sensitivity.rounding import WIDTHS
from integrations.planner.sensitivity.shared_storage import (
    Copy,
    MeasuredCopy,
    find_copy,
    get_layout,
    is_kept,
    read_elements,
    unpacked_from,
)
from integrations.tracing.storage.forms import Packed
from integrations.tracing.storage.regions import fineness
from integrations.tracing.storage.watch import watched_unpacks
from integrations.tracing.tensors import find_local

Gradients = tuple[Tensor | None, ...]

# An error is followed through so many nodes that save something before the model takes over. Rounding in a norm makes
# errors with a structure: a norm below removes some of them, and a convolution that made its input adds others up. The
# estimate over the two-seed reference, for LayerNorms of a 4-layer BERT and the first BatchNorm of ResNet-18: 4 to 56
# and 0.2 without following; 0.6 to 1.7 after 8 nodes for all tensors of both, but up to 1.7 for edge weights of a GCN;
# after 16 nodes these have 1.0 to 1.1.
_HOPS = 16


class Probe:
    """Measures one forward and its first backward.

    Args:
        bits: the width whose rounding error the noise imitates.
        seed, step: of the noise, which does not touch torch's generators.
        block: whether the backward may run before the session is left, and so ends the forward.
        hops: nodes through which an error is followed before the model takes over; each is one more call of a node for
            each tensor.

    Attributes:
        measurement: what was found; ``None`` until the backward is over.
        sees: whether there is something to measure, and a node to measure it in; known when the forward is over.
        too_large: whether the forward's graph has too many nodes to look at, and is not measured.
        dropped: whether it was cancelled in the forward, which then tells nothing of what can be measured.
    """

    def __init__(self, bits: int, seed: int, step: int, block: bool = False, hops: int = _HOPS) -> None:
        self.step = step
        self.measurement: Measurement | None = None
        self.sees = self.too_large = self.dropped = False
        self._bits, self._block, self._hops = bits, block, hops
        self._over = False  # whether the forward is over
        self._lock = threading.RLock()  # another thread's forward may cancel it at any moment
        self._seed = stream_of("probe", step, 0) ^ (seed & (1 << 63) - 1)
        self._graph = AutogradGraph()
        self._stored: WeakKeyDictionary[Copy, MeasuredCopy] = WeakKeyDictionary()
        self._all: list[MeasuredCopy] = []
        self._settled: WeakSet[Copy] = WeakSet()  # copies whose bits no plan can change
        self._hooks: list[RemovableHandle] = []
        self._gains: dict[int, list[Tensor]] = {}  # by node, in the order of backward
        self._errors: dict[int, dict[MeasuredCopy, Error]] = {}  # by node, until backward comes to it
        self._gradient: list[Tensor] = []
        self._generators: dict[torch.device, torch.Generator] = {}

    # ---- the forward, told by the session ----

    def called(self, tensors: Iterable[Tensor], ours: bool) -> None:
        """Notes the results of a call that is over, and what it may have changed in place."""
        with self._lock:
            if not self._over:
                for place, node in self._graph.add(tensors, ours):
                    self._hooks.append(node.register_hook(partial(self._visit, place)))
                if self._graph.full:
                    self.too_large = True
                    self.cancel()

    def stored(self, saved: SavedTensor, tensor: Tensor, codec: GroupAffine, packed: Packed) -> None:
        """Notes a tensor that was quantised, or whose copy was."""
        copy = find_copy(packed)
        if copy is None or self._over or copy in self._settled:
            return
        known = self._stored.get(copy)
        if known is None or fineness(codec) > fineness(known.codec):
            found = MeasuredCopy(copy, codec, tensor, self._bits)
            if known is not None:
                found.identities = known.identities
                self._all.remove(known)
            self._stored[copy] = known = found
            self._all.append(found)
        known.identities.append(Identity.of(saved))

    def stored_beside(self, packed: Packed) -> None:
        """Notes a checkpoint's input that was quantised. What shares its copy has the checkpoint's bits, and none of
        the budget's."""
        copy = find_copy(packed)
        if copy is not None and not self._over:
            self._settled.add(copy)
            self._leave_out(copy)

    def forward_is_over(self) -> None:
        """From now on, backward is measured."""
        with self._lock:
            if self._over:
                return
            self._over = True
            for copy in list(self._stored):
                if is_kept(copy):
                    self._leave_out(copy)
            self.sees = bool(self._all and self._hooks)
            self._graph.close()

    def _leave_out(self, copy: Copy) -> None:
        stored = self._stored.pop(copy, None)
        if stored is not None:
            self._all.remove(stored)

    def cancel(self) -> None:
        """Stops measuring: another forward starts, or this one has failed."""
        with self._lock:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            self.dropped = self.dropped or not self._over
            self._over = True
            self._graph.close()

    # ---- the backward ----

    def _visit(self, place: int, results: Gradients, gradients: Gradients) -> None:
        """Runs after a node's backward: ``gradients`` went in, ``results`` came out."""
        # A graph of the backward is made, and what runs here would be in it.
        if not self._hooks or torch.is_grad_enabled():
            return
        if not self._over:
            if not self._block:  # the forward itself asks for a gradient
                return
            self.forward_is_over()
        if not self._gains:
            queue_callback(self._finish)
        with DisableTorchFunction():
            try:
                self._measure(place, results, gradients)
            except Exception:  # such as an unexpected layout of a gradient: no measurement may make the step fail
                self._gains[place] = [torch.zeros(())] * len(results)

    def _measure(self, place: int, results: Gradients, gradients: Gradients) -> None:
        for (following, _), result in zip(self._graph.edges[place], results, strict=True):
            if following == PARAMETER and result is not None:
                self._gradient.append(_energy(result))
        if not self._graph.repeatable[place] or not self._repeat(place, results, gradients):
            # The gains of its own gradient in place of a random one: the best that is known.
            self._gains[place] = _ratios(results, gradients)
        for stored, error in self._errors.pop(place, {}).items():
            for part in error.parts():
                stored.effects.append((place, _energy(part)))

    def _repeat(self, place: int, results: Gradients, gradients: Gradients) -> bool:
        """Measures a node's gains and effects by calling it. Returns whether that was possible."""
        node: Node | None = current_autograd_node()
        if node is None:
            return False
        unpacked: list[Packed] = []
        try:
            with watched_unpacks(partial(_noting, unpacked)):
                drawn = tuple(None if part is None else self._with_random_signs(part) for part in gradients)
                self._gains[place] = _ratios(derive_backward(node, drawn, results), drawn)
            for stored, error in list(self._errors.get(place, {}).items()):
                passed = tuple(
                    None if gradient is None else _or_zeros(error.part(at), gradient)
                    for at, gradient in enumerate(gradients)
                )
                # A node that saved nothing only moves or adds up its gradients: this is no hop.
                hops = error.hops + bool(unpacked)
                self._pass_on(place, stored, derive_backward(node, passed, results), hops)
                del self._errors[place][stored]
            for copy in dict.fromkeys(self._measured(unpacked)):
                self._measure_effect(place, node, copy, results, gradients)
        except Exception as error:  # whatever it is, the step goes on: the node has already done its work
            for copy in self._measured(unpacked):
                self._stored[copy].why = f"{node.name()} did not run a second time ({type(error).__name__}: {error})"
            return False
        return True

    def _measured(self, unpacked: Iterable[Packed]) -> Iterator[Copy]:
        for packed in unpacked:
            copy = find_copy(packed)
            if copy is not None and copy in self._stored:
                yield copy

    def _measure_effect(self, place: int, node: Node, copy: Copy, results: Gradients, gradients: Gradients) -> None:
        stored, layout = self._stored[copy], get_layout(copy)
        flat = layout.flatten(read_elements(copy))
        energy = stored.energies[self._bits - 1]
        generator = self._generator(flat.device)
        noise = stored.noise(flat, energy, generator)
        perturbed = layout.restore(flat + noise.to(flat.dtype))
        del flat, noise

        def unpack(packed: Packed) -> Tensor:
            return unpacked_from(packed, perturbed) if find_copy(packed) is copy else packed.unpack()

        with watched_unpacks(unpack):
            changed = derive_backward(node, gradients, results)
        differences = [
            None if after is None or before is None else after - before
            for after, before in zip(changed, results, strict=True)
        ]
        self._pass_on(place, stored, differences, 0)

    def _pass_on(self, place: int, stored: MeasuredCopy, parts: Iterable[Tensor | None], hops: int) -> None:
        """Hands an error in a node's results to the nodes below. After enough hops it is modelled."""
        for (following, at), part in zip(self._graph.edges[place], parts, strict=True):
            if part is None or following == NOWHERE:
                continue
            if following == PARAMETER or hops >= self._hops:
                stored.effects.append((following, _energy(part)))
            else:
                waiting = self._errors.setdefault(following, {}).setdefault(stored, Error(hops))
                waiting.add(at, part, hops)

    def _with_random_signs(self, gradient: Tensor) -> Tensor:
        dtype = gradient.dtype.to_real()
        signs = torch.empty_like(gradient, dtype=dtype).bernoulli_(0.5, generator=self._generator(gradient.device))
        signs.mul_(2).sub_(1)
        return signs * gradient if gradient.is_complex() else signs.mul_(gradient)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]

    # ---- after the backward ----

    def _finish(self) -> None:
        """Multiplies gains down the graph. Runs when the whole backward is over."""
        with self._lock:
            if not self._hooks:  # it was cancelled meanwhile
                return
            # In the parameters' gradients, for a unit of energy at each node.
            energy: dict[int, float] = {PARAMETER: 1.0, NOWHERE: 0.0}
            for place in reversed(self._gains):
                gains = torch.stack(self._gains[place]).tolist() if self._gains[place] else []
                energy[place] = sum(
                    gain * energy.get(following, 0.0)
                    for gain, (following, _) in zip(gains, self._graph.edges[place], strict=True)
                )
            tensors = [self._sensitivity(stored, energy) for stored in self._all]
            gradient = sum(torch.stack(self._gradient).tolist()) if self._gradient else 0.0
            self.measurement = Measurement(tuple(tensors), gradient)
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            # Only the next forward ends this probe: until then it keeps nothing of the step.
            self._all, self._gradient = [], []
            self._stored.clear()
            self._gains.clear()
            self._errors.clear()
            self._graph = AutogradGraph()

    def _sensitivity(self, stored: MeasuredCopy, energy: dict[int, float]) -> Sensitivity:
        energies = tuple(stored.energies.tolist())
        measured = sum(effect.item() * energy.get(place, 0.0) for place, effect in stored.effects)
        unit = measured / energies[self._bits - 1] if energies[self._bits - 1] else 0.0
        raw = stored.numel * stored.dtype.itemsize
        sizes, costs, errors = [], [], []
        for bits, error in zip(WIDTHS, energies, strict=True):
            size = replace(stored.codec, bits=bits).stored_bytes(stored.numel, stored.dtype)
            exact = size >= raw  # the codec then keeps a copy as it is
            sizes.append(min(size, raw))
            errors.append(0.0 if exact else error)
            costs.append(0.0 if exact else unit * error)
        return Sensitivity(
            tuple(stored.identities),
            stored.numel,
            tuple(errors),
            tuple(costs) if stored.effects else (),
            tuple(sizes),
            "" if stored.effects else stored.why,
        )


def _or_zeros(error: Tensor | None, gradient: Tensor) -> Tensor:
    return torch.zeros_like(gradient) if error is None else error


def _noting(unpacked: list[Packed], packed: Packed) -> Tensor:
    unpacked.append(packed)
    return packed.unpack()


def _energy(tensor: Tensor) -> Tensor:
    """The squared norm, in float32 at least, since the square of a half overflows; of a DTensor, that of this rank's
    part."""
    part = find_local(tensor)
    if part is not None:
        tensor = part.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    wide = tensor.dtype if tensor.dtype in (torch.float32, torch.float64) else torch.float32
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=wide)
    return norm.double().square()


def _ratios(results: Iterable[Tensor | None], gradients: Gradients) -> list[Tensor]:
    """The energy of each result for a unit of energy in the gradients."""
    parts = [_energy(gradient) for gradient in gradients if gradient is not None]
    whole = torch.stack(parts).sum() if parts else torch.zeros(())
    zero = torch.zeros_like(whole)
    return [zero if result is None else torch.where(whole > 0, _energy(result) / whole, zero) for result in results]
