"""``DataLoader``: torch's, with each batch's places in the data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
from torch.utils import data

Sample = TypeVar("Sample")


class DataLoader(data.DataLoader[Any]):
    """``torch.utils.data.DataLoader`` whose batches are pairs ``(indices, batch)``, as in ActNN.

    ::

        for indices, (images, labels) in qmodules.DataLoader(dataset, batch_size=32, shuffle=True):
            QScheme.batch = indices

    ``indices`` is ``Int64[Tensor, "batch"]``: the indices of the batch's samples in the data set, which per-sample
    gradients need (``config.use_gradient``). Everything else is as in torch's loader: samplers, workers,
    ``collate_fn``.

    Raises:
        TypeError: the data set is an ``IterableDataset``, whose samples have no indices.
    """

    def __init__(self, dataset: data.Dataset[Any], *args: Any, **kwargs: Any) -> None:
        if isinstance(dataset, data.IterableDataset):
            raise TypeError(
                f"dataset must support dataset[i], got {type(dataset).__name__}, an IterableDataset; use "
                "torch.utils.data.DataLoader and set QScheme.batch to indices of your own"
            )
        super().__init__(_Numbered(dataset), *args, **kwargs)
        collate = self.collate_fn
        self.collate_fn = _NumberedCollate(collate) if self._auto_collation else _NumberedOne(collate)


class _Numbered(data.Dataset[tuple[int, Sample]], Generic[Sample]):
    """Samples with their places; other attributes are the data set's own, such as its ``classes``."""

    def __init__(self, dataset: data.Dataset[Sample]) -> None:
        self.dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # which a copy does not have yet
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # DataLoader needs it only for some samplers

    def __getitem__(self, index: Any) -> Any:
        return index, self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, Sample]]:
        whole = getattr(self.dataset, "__getitems__", None)  # a data set may fetch a batch at once
        samples = whole(indices) if callable(whole) else [self.dataset[index] for index in indices]
        return list(zip(indices, samples, strict=True))


class _NumberedCollate:
    """``(indices, collate(samples))`` of a batch that torch makes of samples."""

    def __init__(self, collate: Any) -> None:
        self.collate = collate

    def __call__(self, pairs: Sequence[tuple[int, Any]]) -> tuple[torch.Tensor, Any]:
        indices, samples = zip(*pairs, strict=True)
        return torch.tensor(indices, dtype=torch.int64), self.collate(list(samples))


class _NumberedOne(_NumberedCollate):
    """The same where the sampler names what is one item already: ``batch_size=None``."""

    def __call__(self, pair: Any) -> tuple[torch.Tensor, Any]:
        index, item = pair
        return torch.as_tensor(index), self.collate(item)
