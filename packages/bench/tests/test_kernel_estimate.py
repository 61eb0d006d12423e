"""Instructions that are counted in machine code, and what is made of their numbers."""

import pytest

from bench.cli import suites
from bench.results.machine import Machine
from bench.results.record import Record, save
from bench.suites.kernels import estimate
from bench.suites.kernels.estimate import Count, Work, functions, path

from .rendering import printed

# A tile's load, and a loop of single bytes where it is cut off; a loop of shuffles; a division with its rare cases.
LISTING = """
		Function : kernel
	.headerflags	@"EF_CUDA_SM90"
        /*0000*/                   S2R R0, SR_TID.X ;                     /* 0x0 */
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR6][R2.64] ;       /* 0x0 */
        /*0020*/              @!P0 BRA 0x50 ;                             /* 0x0 */
        /*0030*/                   LDG.E.U8 R4, desc[UR6][R2.64] ;        /* 0x0 */
        /*0040*/               @P1 BRA 0x30 ;                             /* 0x0 */
        /*0050*/                   SHFL.IDX PT, R5, R4, R6, 0x1f ;        /* 0x0 */
        /*0060*/                   FMNMX R4, R4, R5, PT ;                 /* 0x0 */
        /*0070*/              @!P1 BRA 0x50 ;                             /* 0x0 */
        /*0080*/               @P2 BRA 0xd0 ;                             /* 0x0 */
        /*0090*/                   MUFU.RCP R7, R4 ;                      /* 0x0 */
        /*00a0*/               @P3 BRA 0xd0 ;                             /* 0x0 */
        /*00b0*/                   CALL.REL.NOINC 0x110 ;                 /* 0x0 */
        /*00c0*/                   IMAD.MOV.U32 R4, RZ, RZ, R8 ;          /* 0x0 */
        /*00d0*/                   FMUL R4, R4, R7 ;                      /* 0x0 */
        /*00e0*/                   STG.E.64 desc[UR6][R2.64], R4 ;        /* 0x0 */
        /*00f0*/                   EXIT ;                                 /* 0x0 */
"""


def test_the_path_of_a_full_tile():
    code = functions(LISTING)["kernel"]
    assert len(code) == 16
    pipes = path(code, Work(read=16, written=8, floats=1, reciprocals=1, shuffles=3), rounds=3)
    # S2R, LDG, BRA, 3 * (SHFL, FMNMX, BRA), BRA, MUFU, BRA, FMUL, STG, EXIT
    assert pipes == {"other": 1 + 1 + 3 + 2 + 1, "memory": 1 + 3 + 1, "integer": 3, "special": 1, "float": 1}


def test_work_decides_what_is_on_the_path():
    code = functions(LISTING)["kernel"]
    without = path(code, Work(written=8), rounds=1)
    assert without is not None
    assert without["special"] == 0  # the branch over the division is shorter
    assert path(code, Work(written=16), rounds=1) is None


# A loop that is left at its begin: a cell of 16 bytes in each round.
CELLS = """
		Function : kernel
        /*0000*/                   S2R R0, SR_TID.X ;                     /* 0x0 */
        /*0010*/               @P0 BRA 0x60 ;                             /* 0x0 */
        /*0020*/                   LDS.128 R4, [R2] ;                     /* 0x0 */
        /*0030*/                   FMUL R4, R4, R7 ;                      /* 0x0 */
        /*0040*/                   STG.E.128 desc[UR6][R2.64], R4 ;       /* 0x0 */
        /*0050*/                   BRA 0x10 ;                             /* 0x0 */
        /*0060*/                   EXIT ;                                 /* 0x0 */
"""


def test_a_loop_of_cells_is_gone_round_for_each():
    code = functions(CELLS)["kernel"]
    pipes = path(code, Work(written=64, floats=4), rounds=1, cells=4)
    assert pipes == {"other": 1 + 4 + 4 + 1, "memory": 4 + 4, "float": 4}
    assert path(code, Work(written=64), rounds=1, cells=2) is None


def test_the_sources_are_where_they_are_looked_for():
    assert all((estimate._CSRC / source).is_file() for source in estimate._SOURCES.values())


def test_what_a_copy_would_take_by_hand():
    """1024 elements of 2 bytes, 4 bits and 4 groups' bounds are 2576 bytes: 0.599 ns of a copy, 488.7 instructions."""
    count = Count("compress", "bfloat16", 4, False, {"integer": 400, "float": 577})
    assert count.instructions == 977
    assert count.of_copy == pytest.approx(488.7 / 977, rel=1e-3)
    assert Count("compress", "bfloat16", 4, False, {"integer": 400}).of_copy == pytest.approx(488.7 / 800, rel=1e-3)
    assert Count("compress", "bfloat16", 4, False, {"integer": 100}).of_copy == 1
    # 3072 bytes, and one bound for each of 4 groups.
    assert Count("compress", "bfloat16", 8, False, {"float": 1000}, "Float8").of_copy == pytest.approx(0.5843, rel=1e-3)


def test_results_are_read_back_and_shown(tmp_path):
    machine = Machine("a processor", 2, "Linux", {"torch": "2.15.0"}, "0123456789abcdef", False, "python", "today")
    counts = [
        Count("compress", "float32", 4, earlier, {"integer": 700 if earlier else 300}) for earlier in (True, False)
    ]
    counts.append(Count("compress", "float32", 8, False, {"integer": 500}, "Float8"))
    results = Record("kernels-estimate", machine, {"compiler": "13.0", "against": "v1"}, counts)
    save(results, tmp_path / "estimate.json")
    assert suites.load(tmp_path / "estimate.json") == results
    shown = printed(results)
    assert "nothing was run" in shown
    assert "compress, float32, 4 bits" in shown
    assert "700" in shown
    assert "compress, float32, Float8" in shown
