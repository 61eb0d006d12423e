"""Runs CUDA's operators for a forecast, where there need be no GPU: fake tensors are on the device, and indices on the
CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import FakeTensor, FakeTensorMode, OpOverload, fake_mode, tree_map_only
from integrations.capture.dispatch.memory import is_plain, iter_tensors

# What torch says if an operator asks for the GPU.
_NO_DRIVER = ("NVIDIA driver", "CUDA driver", "CUDA error", "not compiled with CUDA", "CUDA-capable device")


def forecast_device(device: str | torch.device) -> torch.device:
    """The device that a forecast is for.

    Raises:
        TypeError: it is neither a string nor a ``torch.device``. A number, which torch takes for a GPU, is not
            accepted.
        ValueError: there are no forecasts for this device.
    """
    rule = "device must be 'cpu' or 'cuda', the devices that a forecast supports"
    if not isinstance(device, (str, torch.device)):
        raise TypeError(
            f"{rule}, as a string or a torch.device, got {device!r} ({type(device).__name__}); name the device, as "
            "'cuda:1' does, or leave device out for the CPU"
        )
    try:
        found = torch.device(device)
    except RuntimeError:  # torch knows no device of this name
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(
            f"{rule}, got {str(device)!r}; pass 'cuda', which needs no GPU here, or 'cpu', whose operators may save "
            "other tensors than those of another device"
        )
    return torch.device("cuda", found.index or 0) if found.type == "cuda" else torch.device("cpu")


def needs_gpu(error: RuntimeError) -> bool:
    """Whether an error is raised because an operator finds no GPU."""
    return not torch.cuda.is_available() and any(words in str(error) for words in _NO_DRIVER)


class OnDevice:
    """Runs an operator on the device of its fake arguments; below fake tensors, where elements are real, on the CPU.

    Real tensors of integers and truth values stand for the device's, and are taken to be there. So are real tensors of
    fractions that were made of them, if they come together with tensors that are there.
    """

    def __init__(self, function: OpOverload, mode: FakeTensorMode, device: torch.device) -> None:
        self._function, self._mode, self._device = function, mode, device
        self._schema, self.tags = function._schema, function.tags

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if fake_mode() is None:
            if kwargs.get("device") is not None:
                kwargs = {**kwargs, "device": torch.device("cpu")}
            return self._function(*args, **kwargs)
        given = [tensor for tensor in (*iter_tensors(args), *iter_tensors(kwargs.values())) if is_plain(tensor)]
        places = {tensor.device for tensor in given if isinstance(tensor, FakeTensor)}
        if not places or self._device in places:
            args, kwargs = tree_map_only(Tensor, self._moved, (args, kwargs))
        return self._function(*args, **kwargs)

    def _moved(self, tensor: Tensor) -> Tensor:
        if tensor.device == self._device or not is_plain(tensor):
            return tensor
        with self._mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device)
