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

Of a kernel's machine code, the path that counts is the shortest from the entry to an exit that does all the work of a
full tile; ``Work`` says what that work is. The path has no calls, and predicated instructions count. Two kinds of loops
are repeated: in one, threads of a group exchange their bounds; in the other, a thread standardizes or restores its
cells of 16 bytes one by one.

``Standardized`` and ``Activation`` are counted for channels last, with a statistic for each channel; ``Activation``
without a sum and a function.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.table import Table

from bench.errors import BenchError
from bench.results.entry import Entry, at, part
from bench.results.entry import table as named
from bench.results.machine import Machine
from bench.results.record import Kind, Record
from bench.results.report import Report
from bench.results.tables import Column, table
from bench.suites.kernels.contenders import COMPRESS, DECOMPRESS

# By the beginning of an instruction's name, the longest that fits: what executes it. The rest is the integer pipe's.
PIPES: Mapping[str, str] = {
    **dict.fromkeys(("FADD", "FMUL", "FFMA"), "float"),
    **dict.fromkeys(("IMAD", "HFMA2", "HADD2", "HMUL2"), "multiply"),
    **dict.fromkeys(("MUFU", "F2I", "I2F", "F2F", "POPC"), "special"),
    **dict.fromkeys(("LDG", "STG", "LDS", "STS", "SHFL", "LDC", "LDL", "STL"), "memory"),
    **dict.fromkeys(("DADD", "DMUL", "DFMA", "DSETP", "DMNMX"), "double"),
    **dict.fromkeys(("BRA", "BSSY", "BSYNC", "EXIT", "NOP", "BAR", "WARPSYNC", "S2R", "CS2R", "U"), "other"),
}
INTEGER = "integer"

_FUNCTION = re.compile(r"Function : (\S+)")
_LINE = re.compile(r"\s+/\*([0-9a-f]{4,6})\*/\s+(?:@(!?U?P\w+) )?([A-Z][\w.]*)([^;]*);")
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
_PHILOX = re.compile(r"IMAD\.WIDE\.U32.*(?:-0x2daee0ad|0xd2511f53|-0x326172a9|0xcd9e8d57)")
_BYTES = re.compile(r"^(?:LDG|STG)\.E(?:\.\w+)*?(?:\.(U8|S8|U16|S16|64|128))?(?:\.|$)")
_WIDTHS = {"U8": 0, "S8": 0, "U16": 2, "S16": 2, None: 4, "64": 8, "128": 16}  # single bytes are a cut-off tile's


@dataclass(frozen=True)
class Instruction:
    """One line of a disassembly.

    Attributes:
        address: in bytes from the function's begin.
        predicate: what it depends on, or empty.
        name: with its modifiers.
        rest: its operands.
    """

    address: int
    predicate: str
    name: str
    rest: str

    @property
    def pipe(self) -> str:
        """What executes it."""
        fitting = [known for known in PIPES if self.name.startswith(known)]
        return PIPES[max(fitting, key=len)] if fitting else INTEGER

    @property
    def target(self) -> int | None:
        """Of a branch."""
        found = _TARGET.search(self.rest) if self.name.startswith("BRA") else None
        return int(found[1], 16) if found else None

    @property
    def never_on_path(self) -> bool:
        return self.name.startswith(("CALL", "RET"))


@dataclass(frozen=True)
class Work:
    """What a path must do, by thread, to be that of a full tile.

    Attributes:
        read: bytes from global memory.
        written: bytes to it.
        products: of the noise.
        floats: products of floats.
        reciprocals: of a group's range.
        shuffles: in which a group's bounds come together.
    """

    read: int = 0
    written: int = 0
    products: int = 0
    floats: int = 0
    reciprocals: int = 0
    shuffles: int = 0


def functions(disassembly: str) -> dict[str, list[Instruction]]:
    """By mangled name, in a listing of ``cuobjdump -sass``."""
    found: dict[str, list[Instruction]] = {}
    code: list[Instruction] = []
    for line in disassembly.splitlines():
        if function := _FUNCTION.search(line):
            code = found.setdefault(function[1], [])
        elif parts := _LINE.match(line):
            code.append(Instruction(int(parts[1], 16), parts[2] or "", parts[3], parts[4]))
    return found


def path(code: Sequence[Instruction], work: Work, rounds: int, cells: int = 1) -> Counter[str] | None:
    """How many instructions of each pipe the shortest path has that does this work, the loop of shuffles gone round
    ``rounds`` times, and those of cells ``cells`` times; None where there is no such path."""
    needed = tuple(vars(work).values())
    times = _times(code, rounds, cells)
    at = {instruction.address: place for place, instruction in enumerate(code)}
    # By place, and by how much of the work is done: the fewest instructions, and which.
    reached: list[dict[tuple[int, ...], tuple[int, Counter[str]]]] = [{} for _ in range(len(code) + 1)]
    reached[0][(0,) * len(needed)] = (0, Counter())
    best: tuple[int, Counter[str]] | None = None
    for place, instruction in enumerate(code):
        if instruction.never_on_path:
            continue
        done_here = _done(instruction, times[place])
        for done, (count, pipes) in reached[place].items():
            now = tuple(min(a + b, most) for a, b, most in zip(done, done_here, needed, strict=True))
            entry = (count + times[place], pipes + Counter({instruction.pipe: times[place]}))
            if instruction.name == "EXIT" and now == needed and (best is None or entry[0] < best[0]):
                best = entry
            for following in _after(code, place, at):
                known = reached[following].get(now)
                if known is None or entry[0] < known[0]:
                    reached[following][now] = entry
        reached[place] = {}
    return best[1] if best else None


def _after(code: Sequence[Instruction], place: int, at: Mapping[int, int]) -> Iterator[int]:
    """Where a path may go on, forwards; from the end of a loop that is left at its begin, there."""
    instruction = code[place]
    always = not instruction.predicate and "P" not in instruction.rest.partition("0x")[0]
    if instruction.target is not None and not instruction.name.startswith("BRA.DIV"):
        target = at.get(instruction.target, -1)
        if target > place:
            yield target
        elif target >= 0 and always:
            exits = (at.get(one.target, -1) for one in code[target:place] if one.predicate and one.target is not None)
            yield from {leaving for leaving in exits if leaving > place}
        if always:
            return
    if instruction.name == "EXIT" and always:
        return
    yield place + 1


def _times(code: Sequence[Instruction], rounds: int, cells: int) -> list[int]:
    """How often each instruction is met: once, but in loops with shuffles or of cells."""
    times = [1] * len(code)
    at = {instruction.address: place for place, instruction in enumerate(code)}
    for place, instruction in enumerate(code):
        begin = at.get(instruction.target, place + 1) if instruction.target is not None else place + 1
        body = range(begin, place + 1)
        if any(code[i].name.startswith("SHFL") for i in body):
            for i in body:
                times[i] = rounds
        elif _takes_cells([code[i].name for i in body]):
            for i in body:
                times[i] = cells
    return times


def _takes_cells(names: Sequence[str]) -> bool:
    """Whether a loop takes one cell in each round: from a tile, and to memory or the tile."""
    touched = [name for name in names if name.startswith(("LDS", "STS", "STG"))]
    reads = [name for name in touched if name.startswith("LDS")]
    writes = [name for name in touched if name.startswith(("STS.128", "STG.E.128"))]
    return len(touched) == len(reads) + len(writes) and len(reads) == len(writes) == 1


def _done(instruction: Instruction, times: int) -> tuple[int, ...]:
    name = instruction.name
    width = _BYTES.match(name)
    moved = _WIDTHS[width[1]] if width else 0
    return (
        moved if name.startswith("LDG") else 0,
        times * moved if name.startswith("STG") else 0,
        1 if _PHILOX.match(name + instruction.rest) else 0,
        times if name.startswith(("FMUL", "FFMA", "DMUL", "DFMA")) else 0,
        1 if name.startswith("MUFU.RCP") else 0,
        times if name.startswith("SHFL") else 0,
    )


ARCHITECTURE = "sm_90"
CLOCK, MULTIPROCESSORS, SCHEDULERS, COPY = 1.98e9, 132, 4, 4.3e12  # of an H200: Hz, ..., bytes a second
ISSUE = 0.78
TILE, ROW, GROUP = 1024, 32, 256  # elements of a warp, of a thread, of a group

DTYPES: Mapping[str, tuple[int, str]] = {
    "float32": (4, "f"),
    "bfloat16": (2, "NS_8BFloat16E"),
    "float16": (2, "NS_4HalfE"),
}
GROUP_AFFINE, FLOAT8, STANDARDIZED, ACTIVATION = "GroupAffine", "Float8", "Standardized", "Activation"
CODECS = (
    *((GROUP_AFFINE, bits) for bits in (1, 2, 4, 8)),
    (FLOAT8, 8),
    *((name, bits) for name in (STANDARDIZED, ACTIVATION) for bits in (6, 8)),
)
"""Names and bits. Both formats of ``Float8`` take the same instructions, so that e4m3 stands for both. ``Standardized``
is stored by statistics that are there; ``Activation`` restores what follows a norm from that."""

_BOUNDS = {GROUP_AFFINE: 2, FLOAT8: 1, STANDARDIZED: 2, ACTIVATION: 2}  # of a group
_CSRC = Path(__file__).parents[6] / "csrc"
_SOURCES = {
    GROUP_AFFINE: "cuda/group_affine.cu",
    FLOAT8: "cuda/float8.cu",
    STANDARDIZED: "cuda/group_affine_standardized.cu",
    ACTIVATION: "cuda/group_affine_activation.cu",
}
_CELL = 16  # bytes
_ENCODED = 40  # products with which a thread encodes its row, those of its group's bounds among them
_COLUMNS = "StandardizeColumns"  # the class of the kernels for channels last


@part("count", "the instructions of a kernel, a thread's for its 32 elements")
class Count(Entry):
    """One kernel."""

    what: str = at("compress or decompress")
    dtype: str = at("of what it is for")
    bits: int = at("of what it is for")
    earlier: bool = at("whether of the commit that was compared with")
    pipes: dict[str, int] = named("", "how many, by what executes them")
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
    there = {codec: source for codec, source in _SOURCES.items() if not earlier or (csrc / source).is_file()}
    code = {codec: functions(_disassembled(nvcc, csrc, source)) for codec, source in there.items()}
    rounds = (GROUP // ROW).bit_length() - 1  # in which threads of a group tell each other their bounds
    for dtype, (size, mangled) in DTYPES.items():
        for codec, bits in CODECS:
            if codec not in code:  # an earlier commit
                continue
            bounds, codes, values = _BOUNDS[codec] * size, ROW * bits // 8, ROW * size
            shuffles = _BOUNDS[codec] * rounds
            scaled = ROW if codec in (STANDARDIZED, ACTIVATION) else 0  # products of elements on their way
            encoded = _ENCODED if scaled else ROW
            works = {
                COMPRESS: Work(values, codes + bounds, 36, encoded + scaled, reciprocals=1, shuffles=shuffles),
                DECOMPRESS: Work(codes + bounds, values, floats=ROW + scaled),
            }
            for what, work in works.items():
                if (codec, what) == (ACTIVATION, COMPRESS):
                    continue
                kind = "NS_4E4M3E" if codec == FLOAT8 else f"Li{bits}E"
                pattern = re.compile(rf"\d{what}_kernelI{mangled}{kind}")
                names = [name for name in code[codec] if pattern.search(name)]
                names.sort(key=lambda name: _COLUMNS not in name)  # an earlier commit has one for all orders
                pipes = path(code[codec][names[0]], work, rounds, values // _CELL) if names else None
                if pipes is None:
                    raise BenchError(
                        f"{_SOURCES[codec]} has no full tile's path in {what}, {dtype}, {bits} bits: "
                        "adapt bench.suites.kernels.estimate"
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
        raise BenchError(f"--against {commit}: git cannot read the sources ({archive.stderr.decode().strip()})")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as sources:
        sources.extractall(folder, filter="data")
    return folder / "csrc"


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


Row = tuple[Count, Count | None]
"""A kernel now, and that of the commit that was compared with."""


def tables(record: Record) -> Iterator[Table]:
    """One of all kernels."""
    kernels = [
        {"codec": codec, "what": what, "dtype": dtype, "bits": bits}
        for what in (COMPRESS, DECOMPRESS)
        for dtype in DTYPES
        for codec, bits in CODECS
    ]
    rows = [
        (now, record.find(Count, earlier=True, **kernel))
        for kernel in kernels
        if (now := record.find(Count, earlier=False, **kernel)) is not None
    ]
    beside = bool(record.settings["against"])
    made = table(
        rows,
        ("estimated for an H200, not run", lambda row: _named(row[0])),
        *_both("instructions", lambda count: str(count.instructions), beside),
        *_both("of the integer pipe", lambda count: str(count.pipes.get(INTEGER, 0)), beside),
        *_both("of a copy", lambda count: f"{count.of_copy:.2f}", beside),
    )
    made.title, made.title_justify = "Estimated from compiled code, nothing was run", "center"
    yield made


def _named(count: Count) -> str:
    stored = FLOAT8 if count.codec == FLOAT8 else f"{count.bits} bit{'s' if count.bits > 1 else ''}"
    kind = f", {count.codec.lower()}" if count.codec in (STANDARDIZED, ACTIVATION) else ""
    return f"{count.what}, {count.dtype}, {stored}{kind}"


def _both(heading: str, cell: Callable[[Count], str], beside: bool) -> list[Column[Row]]:
    """A column, and before it that of the commit that was compared with."""
    now: Column[Row] = heading, lambda row: cell(row[0])
    return [(f"{heading}, before", lambda row: cell(row[1]) if row[1] else ""), now] if beside else [now]


def _head(record: Record) -> dict[str, str]:
    against = record.settings["against"]
    earlier = {"before": f"commit {against}"} if against else {}
    return {"compiler": f"nvcc {record.settings['compiler']} for {ARCHITECTURE}", **earlier}


REPORT = Report("Estimated", tables, head=_head)
