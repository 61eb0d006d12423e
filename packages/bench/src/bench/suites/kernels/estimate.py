"""``python -m bench kernels --estimate``: how fast kernels that round could be on a GPU that is not there.

The kernels are compiled for it and the instructions of a full tile are counted (``sass.py``); nothing is run. A tile is
1024 elements, a warp's work, 32 elements a thread. Of a copy's bytes a second a kernel then reaches::

    min(1, copy / kernel)
    copy   = bytes of the tile / 4.3e12 a second
    kernel = max(instructions, 2 integer, 2 multiply, 8 special) / (0.78 * 1.98e9 * 132 * 4) seconds

since each of the 4 schedulers of a multiprocessor begins an instruction of a warp in each cycle, and its pipe of
integers (logic, shifts, comparisons, minima) takes one in two cycles, that of multiplication of integers as well, that
of conversions and reciprocals one in eight. 0.78 is the part of cycles in which a scheduler finds an instruction to
begin: an assumption, under which the kernels before come out at what was estimated of them by hand (0.5 to 0.6 in
bfloat16).
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.errors import BenchError
from bench.results.entry import Entry, at, part, table
from bench.results.machine import Machine
from bench.results.record import Kind, Record
from bench.suites.kernels.contenders import COMPRESS, DECOMPRESS
from bench.suites.kernels.sass import INTEGER, Work, functions, path

ARCHITECTURE = "sm_90"
CLOCK, MULTIPROCESSORS, SCHEDULERS, COPY = 1.98e9, 132, 4, 4.3e12  # of an H200: Hz, ..., bytes a second
ISSUE = 0.78
TILE, ROW, GROUP = 1024, 32, 256  # elements of a warp, of a thread, of a group

DTYPES: Mapping[str, tuple[int, str]] = {
    "float32": (4, "f"),
    "bfloat16": (2, "NS_8BFloat16E"),
    "float16": (2, "NS_4HalfE"),
}
GROUP_AFFINE, FLOAT8 = "GroupAffine", "Float8"
CODECS = (*((GROUP_AFFINE, bits) for bits in (1, 2, 4, 8)), (FLOAT8, 8))
"""Names and bits. Both formats of ``Float8`` take the same instructions, so that e4m3 stands for both."""

_BOUNDS = {GROUP_AFFINE: 2, FLOAT8: 1}  # of a group
_CSRC = Path(__file__).parents[5] / "csrc"
_SOURCES = {GROUP_AFFINE: "cuda/group_affine.cu", FLOAT8: "cuda/float8.cu"}


@part("count", "the instructions of a kernel, a thread's for its 32 elements")
class Count(Entry):
    """One kernel."""

    what: str = at("compress or decompress")
    dtype: str = at("of what it is for")
    bits: int = at("of what it is for")
    earlier: bool = at("whether of the commit that was compared with")
    pipes: dict[str, int] = table("", "how many, by what executes them")
    codec: str = at("one of CODECS", default=GROUP_AFFINE)

    @property
    def instructions(self) -> int:
        """All of them."""
        return sum(self.pipes.values())

    @property
    def of_copy(self) -> float:
        """The part of a copy's bytes a second that it reaches, by the model above."""
        size, _ = DTYPES[self.dtype]
        moved = TILE * (size + self.bits / 8) + TILE / GROUP * _BOUNDS[self.codec] * size
        pipes = self.pipes
        cycles = max(
            self.instructions, 2 * pipes.get(INTEGER, 0), 2 * pipes.get("multiply", 0), 8 * pipes.get("special", 0)
        )
        return min(1.0, moved / COPY * ISSUE * CLOCK * MULTIPROCESSORS * SCHEDULERS / cycles)


KIND = Kind("kernels-estimate", (Count,), others={"compiler": "nvcc's version", "against": "commit compared with"})


def run(against: str, threads: int) -> Record:
    """Compiles the kernels of this repository, and those of the commit ``against`` if one is named.

    Raises:
        BenchError: a tool or the sources are missing, or a kernel has no path of a full tile.
    """
    if not _CSRC.is_dir():
        raise BenchError("--estimate compiles csrc/cuda: run it in a clone of the repository")
    nvcc = _tool("nvcc", [])
    counts = list(_counted(nvcc, _CSRC, earlier=False))
    if against:
        with TemporaryDirectory() as folder:
            counts += _counted(nvcc, _taken_from(against, Path(folder)), earlier=True)
    found = re.search(r"release ([\d.]+)", _output([nvcc, "--version"]))
    settings = {"compiler": found[1] if found else "unknown", "against": against}
    return Record(KIND.name, Machine.here(torch.device("cpu"), threads), settings, [*counts])


def _counted(nvcc: str, csrc: Path, *, earlier: bool) -> Iterator[Count]:
    code = {codec: functions(_disassembled(nvcc, csrc, source)) for codec, source in _SOURCES.items()}
    rounds = (GROUP // ROW).bit_length() - 1  # in which threads of a group tell each other their bounds
    for dtype, (size, mangled) in DTYPES.items():
        for codec, bits in CODECS:
            bounds, codes, values = _BOUNDS[codec] * size, ROW * bits // 8, ROW * size
            shuffles = _BOUNDS[codec] * rounds
            works = {
                COMPRESS: Work(values, codes + bounds, products=36, floats=ROW, reciprocals=1, shuffles=shuffles),
                DECOMPRESS: Work(codes + bounds, values, floats=ROW),
            }
            for what, work in works.items():
                kind = "NS_4E4M3E" if codec == FLOAT8 else f"Li{bits}E"
                pattern = re.compile(rf"\d{what}_kernelI{mangled}{kind}")
                names = [name for name in code[codec] if pattern.search(name)]
                pipes = path(code[codec][names[0]], work, rounds) if names else None
                if pipes is None:
                    raise BenchError(
                        f"{_SOURCES[codec]} has no full tile's path in {what}, {dtype}, {bits} bits: "
                        "adapt bench.suites.kernels.sass"
                    )
                yield Count(what, dtype, bits, earlier, dict(sorted(pipes.items())), codec)


def _disassembled(nvcc: str, csrc: Path, source: str) -> str:
    with TemporaryDirectory() as folder:
        binary = str(Path(folder) / "kernels.cubin")
        flags = ("-std=c++20", "-O3", "-fmad=false", f"-arch={ARCHITECTURE}", "-cubin", "-I", str(csrc))
        _output([nvcc, *flags, str(csrc / source), "-o", binary])
        return _output([_tool("cuobjdump", [Path(nvcc).resolve().parent, *_tritons()]), "-sass", binary])


def _tritons() -> Iterator[Path]:
    """Where Triton, which comes with torch for CUDA, keeps the tools; not imported, only looked for."""
    yield from Path(torch.__file__).parents[1].glob("triton/backends/nvidia/bin")


def _tool(name: str, elsewhere: Sequence[Path]) -> str:
    found = shutil.which(name) or next((str(at / name) for at in elsewhere if (at / name).is_file()), None)
    if found is None:
        raise BenchError(f"--estimate needs {name}, which is not on PATH; it comes with the CUDA toolkit")
    return found


def _taken_from(commit: str, folder: Path) -> Path:
    """The sources of a commit."""
    archive = subprocess.run(["git", "-C", str(_CSRC.parent), "archive", commit, "csrc"], capture_output=True)
    if archive.returncode:
        raise BenchError(f"--against {commit}: git has no such sources ({archive.stderr.decode().strip()})")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as sources:
        sources.extractall(folder, filter="data")
    return folder / "csrc"


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-300:]}")
    return done.stdout
