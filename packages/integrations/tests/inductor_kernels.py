"""Inductor's kernels in tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from .long_form import LONG


@contextmanager
def empty_kernels() -> Iterator[None]:
    """What inductor compiles here has kernels that do nothing, so that no C++ compiler runs for half a second each.

    Plans, and the bytes that are alive, do not depend on what tensors hold. The long form has real kernels.
    """
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache

    if LONG:
        yield
        return
    with (
        patch.object(AsyncCompile, "cpp_pybinding", lambda self, types, code: lambda *arguments: None),
        patch.object(PyCodeCache, "modules_no_attr", {}),  # which nothing else may find
    ):
        yield
