"""CUDA kernels compiled for the host: the very sources of ``csrc/cuda`` beside ``cuda_on_host``'s stand-in for CUDA.

A launch runs its grid on the spot, so memory is that of CPU tensors. Structs are read from the headers of
``csrc/codec``: whoever adds a kernel names its source below, its entry in ``cuda_on_host/entry_points.cpp``, and calls
it by name.
"""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from .samples import as_bytes

TESTS = Path(__file__).parent
CSRC = TESTS.parent / "csrc"
STAND_IN = TESTS / "cuda_on_host"

# Those that a test runs; others join with a line.
KERNELS = (
    *("group_affine", "group_affine_clamped", "group_affine_standardized", "group_affine_activation"),
    *("group_affine_rows", "moments", "float8"),
    *("bits", "masked", "narrow", "pool", "stepwise", "levels"),
)

# As packages/core/CMakeLists.txt compiles for the host, beside checks that call into block.cpp instead of a library. A
# compiler that adds checks of longjmp takes a fiber's stack for an error.
FLAGS = (
    "-std=c++20",
    "-O0",
    "-fPIC",
    "-ffp-contract=off",
    "-fsanitize=alignment,bounds,shift",
    "-U_FORTIFY_SOURCE",
    "-w",
)

ELEMENT_TYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}

MARGIN = 256  # bytes around what a kernel writes
UNTOUCHED = 0xA5

_SIMPLE = {
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "bool": ctypes.c_bool,
    "double": ctypes.c_double,
}


class Emulation:
    """The kernels that were built."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.failure.restype = ctypes.c_char_p
        self._headers = "\n".join(path.read_text() for path in sorted((CSRC / "codec").glob("*.h")))
        self._structs: dict[str, type] = {}

    def struct(self, name: str) -> type[ctypes.Structure]:
        """The struct of a header: its fields in their order."""
        if name not in self._structs:
            body = re.search(rf"^struct {name} {{\n(.*?)^}};", self._headers, re.MULTILINE | re.DOTALL)
            assert body, f"no struct {name} in csrc/codec"
            fields = []
            for line in re.sub(r"//.*", "", body[1]).splitlines():
                if field := re.fullmatch(r"\s*(?:const )?(\w+)(\*?) (\w+)(?:\[kPoolDims\])?(?: = \w+)?;\s*", line):
                    kind = ctypes.c_void_p if field[2] else self._kind(field[1])
                    fields.append((field[3], kind * 3 if "[" in line else kind))
            self._structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        return self._structs[name]

    def _kind(self, name: str) -> type:
        if f"enum class {name} " in self._headers:
            return ctypes.c_int
        return _SIMPLE[name] if name in _SIMPLE else self.struct(name)

    def run(self, kernel: str, *arguments: object) -> None:
        """Launches ``kernel``: structs, numbers of 64 bits, and tensors and buffers as their memory."""
        passed = []
        for argument in arguments:
            if isinstance(argument, ctypes.Structure):
                passed.append(ctypes.byref(argument))
            elif isinstance(argument, int):
                passed.append(ctypes.c_int64(argument))
            else:
                passed.append(ctypes.c_void_p(argument.data_ptr()))
        error = getattr(self._library, kernel)(*passed)
        assert error == 0, f"{kernel}: error {error}: {self._library.failure().decode()}"


class Written:
    """Memory for ``numel`` elements, ``skip`` bytes beyond where a wide access may begin; its margins must stay."""

    def __init__(self, numel: int, dtype: torch.dtype, *, skip: int = 0) -> None:
        self._size = numel * dtype.itemsize
        self._memory = torch.full((self._size + 2 * MARGIN + 16,), UNTOUCHED, dtype=torch.uint8)
        self._begin = MARGIN + (-self._memory.data_ptr()) % 16 + skip
        self._dtype = dtype

    def data_ptr(self) -> int:
        return self._memory.data_ptr() + self._begin

    def tensor(self) -> Tensor:
        """What was written, after a look at the margins."""
        end = self._begin + self._size
        assert bool((self._memory[: self._begin] == UNTOUCHED).all()), "written before the first element"
        assert bool((self._memory[end:] == UNTOUCHED).all()), "written beyond the last element"
        return self._memory[self._begin : end].clone().view(self._dtype)


def same_bytes(got: Tensor, expected: Tensor, case: object) -> None:
    """Every bit of what a kernel wrote, those of NaN included, is the CPU operator's."""
    assert got.dtype == expected.dtype, case
    assert torch.equal(as_bytes(got), as_bytes(expected.reshape(-1))), case


def at_offset(x: Tensor, skip: int) -> Tensor:
    """A copy whose memory begins ``skip`` bytes beyond a multiple of 16, between margins that are NaN."""
    memory = Written(x.numel(), x.dtype, skip=skip)
    memory._memory.fill_(0xFF)
    place = memory._memory[memory._begin : memory._begin + memory._size]
    place.copy_(as_bytes(x))
    return place.view(x.dtype) if memory.data_ptr() % x.element_size() == 0 else place


def build(folder: Path) -> Emulation:
    """Compiles the kernels into ``folder``, all at once; skips the test where that cannot be."""
    if sys.platform != "linux":
        pytest.skip("a block's threads are switched as Linux's C library can")
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler: name one with CXX")
    if not CSRC.exists():
        pytest.skip("the sources of the kernels are not beside the tests")
    sources = [CSRC / "cuda" / f"{name}.cu" for name in KERNELS]
    sources += [STAND_IN / "block.cpp", STAND_IN / "entry_points.cpp"]
    objects = [folder / f"{source.stem}.o" for source in sources]
    include = ["-I", str(STAND_IN), "-I", str(CSRC)]
    compilations = []
    for source, to in zip(sources, objects, strict=True):
        command = [compiler, *FLAGS, *include, "-x", "c++", "-c", str(source), "-o", str(to)]
        compilations.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    for compilation in compilations:
        _, errors = compilation.communicate()
        assert compilation.returncode == 0, errors
    library = folder / "cuda_on_host.so"
    # Without the flags of the checks: their library is not wanted.
    subprocess.run([compiler, "-shared", *map(str, objects), "-o", str(library)], check=True)
    return Emulation(library)
