"""``Spread``: mean and variance of a gradient that is measured again and again, without keeping each."""

from __future__ import annotations

from torch import Tensor


class Spread:
    """Adds up how far gradients lie from a reference, in float64: sums of squares would lose small variances."""

    def __init__(self) -> None:
        self._count = 0
        self._squares = 0.0
        self._sum: Tensor | None = None
        self._reference: Tensor | None = None

    def add(self, gradient: Tensor | None, reference: Tensor | None) -> None:
        """Takes note of a gradient, and how far it lies from ``reference``; ``None`` stands for the first one."""
        if gradient is None:
            return
        if reference is None:
            if self._reference is None:
                self._reference = gradient.detach()
            reference = self._reference
        distance = gradient.detach().double() - reference
        self._count += 1
        self._squares += distance.square().sum().item()
        self._sum = distance if self._sum is None else self._sum.add_(distance)

    @property
    def variance(self) -> float:
        """The sample variance, summed over the elements."""
        if self._sum is None or self._count < 2:
            return 0.0
        return max(0.0, (self._squares - self._sum.square().sum().item() / self._count) / (self._count - 1))

    @property
    def bias(self) -> float:
        """The mean's squared distance from the reference, less what so few have of it by chance; 0 at least."""
        if self._sum is None:
            return 0.0
        mean: Tensor = self._sum / self._count
        return max(0.0, float(mean.square().sum()) - self.variance / self._count)
