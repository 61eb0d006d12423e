"""Models that differ from one forward to the next, each in something that a decision of what is stored follows from."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

WIDTH = 64


def input_of(step: int) -> Tensor:
    """What the models are given in a step."""
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def between(self, x: Tensor, step: int) -> Tensor:
        return x

    def forward(self, x: Tensor, step: int) -> Tensor:
        return self.second(self.between(self.norm(self.first(x)), step))  # type: ignore[no-any-return]


class Alternating(Net):
    """Another function of the same shapes."""

    def between(self, x: Tensor, step: int) -> Tensor:
        return (F.relu, F.silu, torch.sigmoid)[step % 3](x)


class Branching(Net):
    """A branch that follows from the data."""

    def between(self, x: Tensor, step: int) -> Tensor:
        return F.gelu(x) if bool(x.sum() > 0) else x.tanh() * x


class Repeating(Net):
    """A module that is called another number of times, with the same weights."""

    def between(self, x: Tensor, step: int) -> Tensor:
        for _ in range(1 + step % 3):
            x = self.first(x).relu()
        return x


class Swapping(Net):
    """Modules without parameters, in another order: what they save has noise of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.GELU(), nn.GELU()

    def between(self, x: Tensor, step: int) -> Tensor:
        one, other = (self.left, self.right) if step % 2 else (self.right, self.left)
        return other(self.second(one(x)))  # type: ignore[no-any-return]


class Crossing(Net):
    """The same functions of the same shapes, of which other arguments are given."""

    def between(self, x: Tensor, step: int) -> Tensor:
        y = x.sigmoid()
        z = y.tanh()
        return y * z if step % 2 else z * (z if step % 4 else y)


class Narrowing(Net):
    """A view of the same shape that lies elsewhere in the memory that was saved."""

    def between(self, x: Tensor, step: int) -> Tensor:
        wide = torch.cat([x, x * 2], 1)
        start = WIDTH * (step % 2)
        return self.second(wide[:, :WIDTH]) + self.first(wide[:, start : start + WIDTH])  # type: ignore[no-any-return]


class Detaching(Net):
    """What needs a gradient in one step and none in the next; what somebody else keeps, and nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.rand(8, WIDTH))

    def between(self, x: Tensor, step: int) -> Tensor:
        other = self.mask if step % 2 else torch.rand(8, WIDTH)
        return x * other + (x.detach() if step % 3 else x) * x


class InPlace(Net):
    """A tensor that is changed between two that save it, in some steps."""

    def between(self, x: Tensor, step: int) -> Tensor:
        y = x.sigmoid().detach()
        z = x * y
        if step % 2:
            y = y.add_(1)
            return z.sum() + x.detach() * self.first(y)
        return z + x * y


class Overwriting(Net):
    """Memory that is changed in place between two that save it, in some steps."""

    def between(self, x: Tensor, step: int) -> Tensor:
        h = x.detach().clone()
        y = self.first(h)
        if step % 2:
            h.add_(1)
        return x + y * self.second(h)  # type: ignore[no-any-return]


class Exposing(Net):
    """The same, where its version does not move."""

    def between(self, x: Tensor, step: int) -> Tensor:
        h = x.detach().clone()
        y = self.first(h)
        if step % 2:
            h.data.add_(1)
        return x + y * self.second(h)  # type: ignore[no-any-return]


class Sliding(Net):
    """Rows that lie elsewhere in the memory that was saved."""

    def between(self, x: Tensor, step: int) -> Tensor:
        rows = torch.cat([x, x * 2])
        start = len(x) * (step % 2)
        return self.second(rows[: len(x)]) + self.first(rows[start : start + len(x)])  # type: ignore[no-any-return]


class Cutting(Net):
    """A part of a large memory in the place of a whole one."""

    def between(self, x: Tensor, step: int) -> Tensor:
        large = torch.cat([x * 2] * (16 if step % 2 else 1)).exp()
        return x * large[: len(x)].log()


class Powers(Net):
    """An argument by which the rule of a function holds, or not."""

    def between(self, x: Tensor, step: int) -> Tensor:
        x = x.pow(2 + step % 3)
        return F.elu(x, 1.0 if step % 3 else 0.1)


class Casting(Net):
    """A dtype that changes."""

    def between(self, x: Tensor, step: int) -> Tensor:
        kind = torch.bfloat16 if step % 2 else torch.float32
        return F.silu(x.to(kind)).float()


class Dropping(Net):
    """Dropout that is switched off in between."""

    def between(self, x: Tensor, step: int) -> Tensor:
        return F.dropout(x, 0.5, self.training and step % 3 != 1)


class Signing(Net):
    """Signs of memory that a layer has saved before, in some steps, and that one of two saves twice."""

    def between(self, x: Tensor, step: int) -> Tensor:
        y = x * 2
        if step % 2:
            return self.second(y) + F.leaky_relu(y)  # type: ignore[no-any-return]
        z = F.leaky_relu(y, 0.1 if step % 4 else 0.3)
        return z + self.second(y) + (F.leaky_relu(y, 0.2) if step % 3 else y)  # type: ignore[no-any-return]


class Masking(Net):
    """Masks that are as small as bits, of two conditions and of one; and a shape that is all that is asked for."""

    def between(self, x: Tensor, step: int) -> Tensor:
        mask = x > 0
        y = torch.where(mask, x, x * 0.1)
        y = torch.where(mask if step % 2 else x < 0, y, y.sin())
        wide = F.avg_pool1d(y, 2 if step % 3 else 1, 1)
        return y + F.pad(wide, (0, WIDTH - wide.shape[1]))


class Approximating(Net):
    """A function of which another argument takes nothing from how its input is stored; and what a layer, too, saves."""

    def between(self, x: Tensor, step: int) -> Tensor:
        y = F.gelu(x, approximate="tanh" if step % 2 else "none")
        before = self.second(y) if step % 3 else y
        return before + F.silu(y) + (self.second(y) if step % 4 else y)  # type: ignore[no-any-return]


class Normalising(Net):
    """Statistics of the batch or those of before; of more channels, or fewer; channels first, and last."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def between(self, x: Tensor, step: int) -> Tensor:
        images = x.view(-1, 4, 4, WIDTH // 16)
        if step % 4 > 2:
            images = images.contiguous(memory_format=torch.channels_last)
        images = F.batch_norm(images * 2, self.mean, self.variance, training=step % 2 == 0)
        return F.group_norm(images * 3, 2 if step % 3 else 4).reshape(x.shape)


class Checkpointing(Net):
    """A checkpoint inside, in some steps."""

    def between(self, x: Tensor, step: int) -> Tensor:
        if step % 2:
            return checkpoint(lambda given: self.second(F.gelu(given)), x, use_reentrant=False)  # type: ignore[no-any-return]
        return self.second(F.gelu(x))  # type: ignore[no-any-return]


class Hooking(Net):
    """Saved-tensor hooks of others that come and go."""

    def between(self, x: Tensor, step: int) -> Tensor:
        if step % 2:
            with saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
                x = F.gelu(self.first(x))
        return F.gelu(self.second(x))


class Thinning(Net):
    """Dropout at another rate, whose masks have another value."""

    def between(self, x: Tensor, step: int) -> Tensor:
        return F.dropout(x, 0.5 if step % 3 else 0.1)


class Indexing(Net):
    """Indices of the same shape into tables of other sizes, which take another number of bits."""

    def between(self, x: Tensor, step: int) -> Tensor:
        count = 200 if step % 3 else 700
        table = torch.cat([x] * (count // len(x) + 1))[:count]
        where = (torch.arange(256) * (1 + step)) % 200
        return x + table.index_select(0, where).view(-1, *x.shape).mean(0)


class Projecting(Net):
    """Query, key and value of one product: in another order, with a part in other memory, and from a larger product."""

    def __init__(self) -> None:
        super().__init__()
        self.three, self.more = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH)

    def between(self, x: Tensor, step: int) -> Tensor:
        made = self.more(x) if step % 5 == 4 else self.three(x)
        parts = list(made.view(1, len(x), -1, 2, WIDTH // 2).permute(2, 0, 3, 1, 4).unbind(0)[:3])
        if step % 5 in (1, 2):
            parts = parts[step % 5 :] + parts[: step % 5]
        if step % 5 == 3:
            parts[1] = parts[1] * 2
        return F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(x.shape)


NETS = [
    Net, Alternating, Branching, Repeating, Swapping, Crossing, Narrowing, Detaching, InPlace,
    Overwriting, Exposing, Sliding, Cutting, Powers, Casting, Dropping, Signing, Masking,
    Approximating, Normalising, Checkpointing, Hooking, Thinning, Indexing, Projecting,
]  # fmt: skip
