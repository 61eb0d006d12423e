"""Sketches that are a sample: of tokens by the norm of their rows, and of features."""

from __future__ import annotations

import torch
from torch import Tensor

from integrations.fewbit.sketches.keys import subsets, uniforms


def sample_tokens(matrix: Tensor, key: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """``rows`` tokens, drawn with replacement with a probability proportional to the norm of their row of ``matrix``.

    Of all probabilities that do not know the other factor, these give its product with ``matrix`` the least variance
    where the other's norms are independent of these (after Drineas, Kannan and Mahoney, "Fast Monte Carlo algorithms
    for matrices I", SIAM Journal on Computing 36, 2006).

    Args:
        matrix: ``Float["tokens d"]``.
        key: ``Int64["2"]``: seed and stream.

    Returns:
        ``Int64["rows"]``, the tokens, and ``Float["rows"]``, their weights: the inverse of ``rows`` times the
        probability. All weights are NaN where ``matrix`` has a NaN or an infinity: what is left out may be it.
    """
    # float64, whose sum of all norms tells a token of a millionth of them from its neighbour, and has no overflow.
    norms = torch.linalg.vector_norm(matrix.detach(), dim=-1, dtype=torch.float64)
    total = norms.sum()
    sums = norms.nan_to_num(0.0, 0.0, 0.0).cumsum(0)
    # A uniform number is a multiple of 2**-52, so the product stays below the last sum, and right=True takes no token
    # of norm 0, but where all are.
    tokens = torch.searchsorted(sums, uniforms(key, rows) * sums[-1], right=True).clamp_(max=norms.shape[0] - 1)
    chosen = norms[tokens]
    # A token of norm 0 has a row of zeros, so its weight may be any number.
    weights = torch.where(chosen > 0, total / (rows * chosen), 1.0) + total * 0
    return tokens, weights


def sample_features(key: Tensor, number: int, features: int) -> Tensor:
    """``Int64["number"]``: that many of the features, uniformly and without replacement."""
    order = subsets(key, number, features, torch.zeros(1, dtype=torch.int64, device=key.device))
    return order[0].clone()  # not a view of the order of all
