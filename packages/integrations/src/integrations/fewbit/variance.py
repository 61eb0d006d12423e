"""How much variance a sketch adds to a linear layer's weight gradient, beside that of the samples themselves.

For the gradient ``X^T Y`` of an input ``X`` and an output gradient ``Y``, whose rows ``x_t`` and ``y_t`` are of one
token each; a variance is the sum over all entries of the gradient, in units of the gradient's square. The question and
the variance of samples are those of Bershatsky et al. (arXiv 2201.13195); the variances of the sketches are exact, each
of its own kind.

``docs/reference/randomized-linear.md`` has the formulas. Their derivation, for a sketch of ``k`` rows and ``Q = sum_t
|x_t|**2 |y_t|**2``:

- gaussian, rademacher: a row of ``sqrt(k) S`` has independent entries ``s_t`` of mean 0 and variance 1, and gives the
  estimate ``(sum_t s_t x_t) (sum_u s_u y_u)^T``. Its mean square is ``sum E[s_t s_u s_v s_w] (x_t . x_v) (y_u . y_w)``.
  The three pairings of indices contribute ``|X^T Y|**2``, ``|X|**2 |Y|**2`` and ``|X^T Y|**2``. Four equal indices
  contribute ``(E[s**4] - 3) Q``: 0 for normal numbers, ``-2 Q`` for signs. The squared mean subtracts one ``|X^T
  Y|**2``, and ``k`` independent rows divide by ``k``.
- dct, dft: with ``A = H D X`` and ``B = H D Y``, each row of the transform gives ``n a_r b_r^T``, whose mean over ``r``
  is ``X^T Y``. Drawing ``k`` of ``n`` rows without replacement leaves ``(n - k) / ((n - 1) k)`` of their variance. The
  mean over the signs of ``n sum_r |a_r|**2 |b_r|**2`` is ``V = sum_tu M_tu (|x_t|**2 |y_u|**2 + 2 (x_t . x_u) (y_t .
  y_u)) - 2 sum_t M_tt |x_t|**2 |y_t|**2`` with ``M_tu = n sum_r h_rt**2 h_ru**2``. For the DCT-II, ``M_tu = 1 - 1/n +
  [u = t] / 2 + [u = n - 1 - t] / 2``. For the Hartley transform, ``M_tu = 1 + [2u = 2t] / 2 - [2u = -2t] / 2``, modulo
  ``n``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

import actcore
from integrations.fewbit.modules.linear import RandomizedLinear
from integrations.fewbit.sketches import Sketching, runs


def estimate_correlation(x: Tensor, y: Tensor) -> Tensor:
    """Return ``(|X^T Y| / (|X| |Y|))**2``, from 0 to 1: ``Float64[""]``.

    The smaller it is, the more the noise of a sketch matters.

    Args:
        x: ``Float["... in"]``, the layer's input.
        y: ``Float["... out"]``, the gradient of its output.

    Raises:
        ValueError: the two differ in their tokens.
    """
    x, y = _matrices(x, y)
    # Above 1 only by the rounding of sums.
    correlation: Tensor = x.t().mm(y).square().sum() / (x.square().sum() * y.square().sum())
    return correlation.clamp(max=1.0)


def estimate_variance_sgd(x: Tensor, y: Tensor) -> Tensor:
    """Return the variance of the gradient over the choice of the ``n`` tokens, estimated from these: ``Float64[""]``.

    ``n / (n - 1) sum_t |x_t|**2 |y_t|**2 - |X^T Y|**2 / (n - 1)``, as in the paper, which treats the tokens as
    independent. NaN for a single token.

    Args:
        x: ``Float["... in"]``, the layer's input.
        y: ``Float["... out"]``, the gradient of its output.

    Raises:
        ValueError: the two differ in their tokens.
    """
    x, y = _matrices(x, y)
    n = x.shape[0]
    if n < 2:
        return x.new_full((), math.nan)
    return (n * _products(x, y) - x.t().mm(y).square().sum()) / (n - 1)


def estimate_variance_rmm(
    x: Tensor, y: Tensor, k: int, kind: str = "gaussian", block_size: int | None = None
) -> Tensor:
    """Return the exact variance of the gradient over the noise of a sketch of ``k`` rows: ``Float64[""]``.

    Args:
        x: ``Float["... in"]``, the layer's input.
        y: ``Float["... out"]``, the gradient of its output.
        k: rows of the sketch; if there are no more tokens than rows, there is no sketch and the variance is 0.
        kind: ``matmul`` of ``RandomizedLinear``.
        block_size: that of ``RandomizedLinear``. Blocks are independent, so their variances add up.

    Raises:
        TypeError: ``k`` is not an int.
        ValueError: ``k`` or ``block_size`` is below 1, ``kind`` is unknown, or the two differ in their tokens.
    """
    Sketching(proj_dim=k, matmul=kind, block_size=block_size)
    x, y = _matrices(x, y)
    n = x.shape[0]
    if k >= n:
        return x.new_zeros(())
    if kind == "rows":
        norms = x.norm(dim=1)
        variance: Tensor = norms.sum() * (norms * y.square().sum(1)).sum() - x.t().mm(y).square().sum()
        return variance / k
    total = x.new_zeros(())
    for run in runs(n, k, block_size):
        for block in range(run.blocks):
            start = run.first_token + block * run.tokens
            end = start + run.tokens
            total = total + _of_block(x[start:end], y[start:end], run.rows, kind)
    return total


def linear_grad_weight_variance(layer: RandomizedLinear, x: Tensor, y: Tensor) -> Tensor:
    """Return the variance of a layer's weight gradient over the noise of its sketches: ``Float64[""]``.

    It does not include the variance of rounding the sketch to ``bits``.

    Args:
        layer: the layer, whose options are used.
        x: ``Float["... in"]``, the layer's input.
        y: ``Float["... out"]``, the gradient of its output.

    Raises:
        TypeError: the layer is of another class.
        ValueError: the two differ in their tokens.
    """
    if not isinstance(layer, RandomizedLinear):
        raise TypeError(f"layer must be a RandomizedLinear, got {type(layer).__name__}")
    options, tokens = layer.sketching, x.numel() // max(x.shape[-1], 1)
    if tokens == 0:
        return x.new_zeros((), dtype=torch.float64)
    return estimate_variance_rmm(x, y, options.rows(tokens), options.matmul, options.block_size)


class VarianceEstimator(nn.Module):
    """Wraps a ``RandomizedLinear`` and measures at each backward the variance that its sketch adds to the gradient.

    It keeps the layer's whole input until backward. Use it to measure, not to train with less memory.

    ::

        model.dense = VarianceEstimator(model.dense, print)     # corr, var_sgd, var_rmm, step

    Args:
        model: the layer.
        callback: called as ``callback(corr, var_sgd, var_rmm, step)`` with floats and the number of the backward, from
            0; it synchronizes with the device.

    Raises:
        TypeError: ``model`` is of another class, or the callback is not callable.
    """

    def __init__(
        self, model: RandomizedLinear, callback: Callable[[float, float, float, int], object] | None = None
    ) -> None:
        super().__init__()
        if not isinstance(model, RandomizedLinear):
            raise TypeError(f"model must be a RandomizedLinear, got {type(model).__name__}")
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be callable or None, got {callback!r}")
        self.model, self.callback, self.step = model, callback, 0
        self._found: Tensor | None = None

    @property
    def variance(self) -> tuple[float, float, float]:
        """The results of the last backward: ``estimate_correlation``, ``estimate_variance_sgd``,
        ``estimate_variance_rmm``.

        Raises:
            RuntimeError: there was no backward yet.
        """
        if self._found is None:
            raise RuntimeError("no gradient was seen; call forward in train() and backward first")
        corr, sgd, rmm = self._found.tolist()
        return corr, sgd, rmm

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.model(input)
        if self.training and output.requires_grad and self.model.weight.requires_grad:
            kept = actcore.Kept.of(input)
            output.register_hook(lambda gradient: self._measure(kept.unpack(), gradient))
        return output

    def _measure(self, x: Tensor, gradient: Tensor) -> None:
        y = gradient.detach()
        found = [
            estimate_correlation(x, y),
            estimate_variance_sgd(x, y),
            linear_grad_weight_variance(self.model, x, y),
        ]
        self._found = torch.stack(found)
        if self.callback is not None:
            self.callback(*self.variance, self.step)
        self.step += 1


def _matrices(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    for name, value in (("x", x), ("y", y)):
        if not isinstance(value, Tensor) or not value.dim():
            raise ValueError(f"{name} must be a tensor of at least one dimension, got {value!r}")
    if x.shape[:-1] != y.shape[:-1]:
        raise ValueError(
            f"x and y must have the same dimensions but for the last, got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    return x.detach().double().reshape(-1, x.shape[-1]), y.detach().double().reshape(-1, y.shape[-1])


def _products(x: Tensor, y: Tensor) -> Tensor:
    """``sum_t |x_t|**2 |y_t|**2``."""
    return x.square().sum(1) @ y.square().sum(1)


def _of_block(x: Tensor, y: Tensor, k: int, kind: str) -> Tensor:
    norms, gram = x.square().sum() * y.square().sum(), x.t().mm(y).square().sum()
    if kind == "gaussian":
        return (norms + gram) / k
    if kind == "rademacher":
        return (norms + gram - 2 * _products(x, y)) / k
    n = x.shape[0]
    if k == n:
        return x.new_zeros(())
    # With A = H D X and B = H D Y, the mean over the signs D of n sum_r |a_r|**2 |b_r|**2.
    spread = norms + 2 * gram - 2 * _products(x, y)
    if kind == "dct":
        spread = spread * (1 - 1 / n)
    for sign, order in _coincidences(n, kind, x.device):
        spread = spread + sign / 2 * _paired(x, y, order)
    # The variance of a mean of k of n, drawn without replacement.
    return (spread - gram) / k * ((n - k) / (n - 1))


def _coincidences(n: int, kind: str, device: torch.device) -> list[tuple[int, Tensor]]:
    """Where the squares of the transform's entries go together.

    ``n sum_r h[r,t]**2 h[r,u]**2`` is a constant, 1 or for dct ``1 - 1/n``, and half a sign for each order that takes
    ``t`` to ``u``.
    """
    place = torch.arange(n, device=device)
    if kind == "dct":
        return [(1, place), (1, n - 1 - place)]
    orders = [(1, place), (-1, -place % n)]
    if n % 2 == 0:
        orders += [(1, (place + n // 2) % n), (-1, (n // 2 - place) % n)]
    return orders


def _paired(x: Tensor, y: Tensor, order: Tensor) -> Tensor:
    """The three pairings of four equal or different signs, for tokens and their partners."""
    other_x, other_y = x[order], y[order]
    crossed = ((x * other_x).sum(1) * (y * other_y).sum(1)).sum()
    alone = order == torch.arange(len(order), device=order.device)
    return x.square().sum(1) @ other_y.square().sum(1) + 2 * crossed - 2 * _products(x, y * alone[:, None])
