"""The path of a warp through a kernel where nothing is out of the ordinary, in the processor's own instructions.

A kernel's machine code has many paths: for tiles that are cut off, for misaligned memory, for groups that need scaling
or are not finite. The one that counts is the shortest from the entry to an exit that does all the work of a full tile,
as ``Work`` says what that is. No call is on it (a division's rare cases), no loop is gone round again but the one in
which the threads of a group tell each other their bounds, and a predicated instruction counts, since it takes its turn.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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


def path(code: Sequence[Instruction], work: Work, rounds: int) -> Counter[str] | None:
    """How many instructions of each pipe the shortest path has that does this work, the loop of shuffles gone round
    ``rounds`` times; None where there is no such path."""
    needed = tuple(vars(work).values())
    times = _times(code, rounds)
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
            for following in _after(instruction, place, at):
                known = reached[following].get(now)
                if known is None or entry[0] < known[0]:
                    reached[following][now] = entry
        reached[place] = {}
    return best[1] if best else None


def _after(instruction: Instruction, place: int, at: Mapping[int, int]) -> Iterator[int]:
    """Where a path may go on, forwards."""
    always = not instruction.predicate and "P" not in instruction.rest.partition("0x")[0]
    if instruction.target is not None and not instruction.name.startswith("BRA.DIV"):
        if at.get(instruction.target, -1) > place:
            yield at[instruction.target]
        if always:
            return
    if instruction.name == "EXIT" and always:
        return
    yield place + 1


def _times(code: Sequence[Instruction], rounds: int) -> list[int]:
    """How often each instruction is met: once, but in loops with shuffles."""
    times = [1] * len(code)
    at = {instruction.address: place for place, instruction in enumerate(code)}
    for place, instruction in enumerate(code):
        begin = at.get(instruction.target, place + 1) if instruction.target is not None else place + 1
        body = range(begin, place + 1)
        if any(code[i].name.startswith("SHFL") for i in body):
            for i in body:
                times[i] = rounds
    return times


def _done(instruction: Instruction, times: int) -> tuple[int, ...]:
    name = instruction.name
    width = _BYTES.match(name)
    moved = _WIDTHS[width[1]] if width else 0
    return (
        moved if name.startswith("LDG") else 0,
        moved if name.startswith("STG") else 0,
        1 if _PHILOX.match(name + instruction.rest) else 0,
        1 if name.startswith(("FMUL", "FFMA", "DMUL", "DFMA")) else 0,
        1 if name.startswith("MUFU.RCP") else 0,
        times if name.startswith("SHFL") else 0,
    )
