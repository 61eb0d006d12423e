"""The derivative of a scalar function where a fit asks for it. Raises if there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from integrations.policies.codebooks.catalogue import FUNCTIONS, FewBitFunction

ScalarFunction = str | Callable[[Tensor], Tensor]
"""A name of ``FUNCTIONS``, or a torch function that maps each element by itself."""

# An elementwise function gives an element the same value among any others, except for the last digits, since torch
# computes the last few of a row with other instructions. Such a difference is a few units in the last place of float64,
# or 2**-24 of the largest value if a user's function uses float32.
_ROUNDING = 1e-5

# Points at which a function is also evaluated one by one.
_ALONE = 16


class Slope:
    """``slope(x)`` is the derivative at ``x``: ``Float64["n"] -> Float64["n"]``, on the CPU, without history."""

    def __init__(
        self,
        function: ScalarFunction,
        parameters: Sequence[float] = (),
        derivative: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.known = _known(function) if isinstance(function, str) else None
        self.name = function if isinstance(function, str) else getattr(function, "__name__", repr(function))
        if not isinstance(function, str) and not callable(function):
            raise TypeError(f"function must be a name of FUNCTIONS or a torch function, got {function!r}")
        if derivative is not None and not callable(derivative):
            raise TypeError(f"derivative must be a torch function, got {derivative!r}")
        parameters = list_numbers(parameters)
        if self.known and parameters and len(parameters) != len(self.known.defaults):
            raise ValueError(
                f"parameters of {self.name} must be {len(self.known.defaults)} numbers "
                f"({', '.join(self.known.defaults) or 'it has none'}), got {len(parameters)}"
            )
        self._call: Callable[..., Tensor] = self.known.call if self.known else function  # type: ignore[assignment]
        self._parameters = parameters
        self._derivative = derivative

    @property
    def even(self) -> bool:
        """Whether the derivative is known to be even. A user's function's is not."""
        return self.known is not None and self.known.even

    def __call__(self, x: Tensor) -> Tensor:
        if self._derivative is not None:
            with torch.no_grad():
                return self._evaluated("derivative", self._derivative, x)
        # The caller's hooks on saved tensors may return other numbers; these come first.
        with torch.inference_mode(False), torch.enable_grad(), saved_tensors_hooks(_itself, _itself):
            at = x.clone().requires_grad_()
            # A copy, since the function may work in place.
            value = self._evaluated("function", self._call, at.clone())
            if not value.requires_grad:
                raise ValueError(
                    f"function must have a derivative that torch knows, but {self.name} returns a tensor without "
                    "history; give derivative="
                )
            [slope] = torch.autograd.grad(value.sum(), at)
        # Where a function has no value, as a logarithm of negative numbers, torch's derivative may still be a number.
        return slope.detach().masked_fill(value.detach().isnan(), torch.nan)

    def require_elementwise(self, x: Tensor) -> None:
        """Raises unless the values at some points, lopsided and shuffled, and at single points are those among all.

        Half of the points would not do: evenly chosen, they have the mean of all, and in reverse order they look the
        same to a function that reverses.
        """
        if not self.known:
            self._require_elementwise("function", self._call, x)
        if self._derivative is not None:
            self._require_elementwise("derivative", self._derivative, x)

    def _require_elementwise(self, what: str, call: Callable[[Tensor], Tensor], x: Tensor) -> None:
        count = len(x)
        shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(count), device="cpu")
        some = shuffled[(shuffled >= count // 8) & (shuffled < count - count // 4)]
        alone = torch.linspace(0, count - 1, _ALONE, device="cpu").long().unsqueeze(1)
        with torch.no_grad():
            among_all = self._evaluated(what, call, x.clone())
            values = [self._evaluated(what, call, x[at]) for at in (some, *alone)]
        chosen = torch.cat([some, alone.flatten()])
        expected, found = among_all[chosen], torch.cat(values)
        same = (expected == found) | (expected.isnan() & found.isnan())
        apart = (expected - found).abs().nan_to_num(torch.inf).masked_fill(same, 0.0)
        finite = among_all[among_all.isfinite()]
        if bool((apart > _ROUNDING * finite.abs().sum() / max(1, len(finite))).any()):
            raise ValueError(
                f"{what} must map each element by itself, the same way each time, but the value of {self.name} at "
                f"{x[chosen[apart.argmax()]]:.6g} depends on the elements beside it or changes from call to call; "
                "functions of a whole row, such as softmax, and random ones, such as dropout, have no derivative to fit"
            )

    def require_finite(self, x: Tensor) -> None:
        """Raises where the derivative is NaN or infinite, with the place."""
        slope = self(x)
        if not bool(slope.isfinite().all()):
            at = int((~slope.isfinite()).nonzero()[0])
            raise ValueError(
                f"the derivative of {self.name} must be finite on the domain, got {slope[at].item()} at x={x[at]:.6g}; "
                "choose a domain without that place, or give derivative="
            )

    def require_even(self, x: Tensor) -> None:
        """Raises unless the derivative is the same at ``x`` and ``-x``."""
        right, left = self(x), self(-x)
        apart = (right - left).abs()
        if bool((apart > _ROUNDING * right.abs().amax()).any()):
            at = int(apart.argmax())
            raise ValueError(
                f'parity must be "even" for even derivatives only, but that of {self.name} is {right[at]:.6g} at '
                f"{x[at]:.6g} and {left[at]:.6g} at {-x[at]:.6g}; leave parity out"
            )

    def _evaluated(self, what: str, call: Callable[..., Tensor], x: Tensor) -> Tensor:
        try:
            value: object = call(x, *self._parameters) if what == "function" else call(x)
        except (TypeError, ValueError, RuntimeError) as error:
            if self.known:
                raise
            raise TypeError(
                f"{what} must be a torch function of a tensor, such as torch.sin, but {self.name} fails on a float64 "
                f"tensor of shape {tuple(x.shape)}: {error}"
            ) from error
        if not isinstance(value, Tensor) or value.shape != x.shape:
            found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"{what} must map a tensor to one of its shape, element by element, but {self.name} makes {found} of "
                f"shape {tuple(x.shape)}"
            )
        if not value.dtype.is_floating_point:
            raise ValueError(f"{what} must return floating-point numbers, but {self.name} returns {value.dtype}")
        return value.double()


def list_numbers(parameters: Sequence[float]) -> tuple[float, ...]:
    """Parameters as floats. Raises ``TypeError`` if they are not a sequence, such as a number without parentheses."""
    try:
        return tuple(map(float, parameters))
    except (TypeError, ValueError):
        raise TypeError(f"parameters must be a sequence of numbers, such as (2.0,), got {parameters!r}") from None


def _itself(saved: Tensor) -> Tensor:
    return saved


def _known(name: str) -> FewBitFunction:
    if name not in FUNCTIONS:
        raise ValueError(f"function must be one of {', '.join(FUNCTIONS)}, or a torch function, got {name!r}")
    return FUNCTIONS[name]
