import dataclasses
import itertools
import statistics
from io import StringIO

import pytest
import torch
from rich.console import Console

import actcore
from bench import cli, records
from bench.errors import BenchError
from bench.kernels import KernelTime, chart, clock, measure, plain, report, rivals, time_kernels
from bench.kernels.cases import cases
from bench.kernels.contenders import Pass, RoundTrip, yardsticks
from bench.kernels.results import KernelResults, Measurement, Timing
from bench.machine import Machine

CPU = torch.device("cpu")
KIB = 2**10


def normal(numel, dtype=torch.float32):
    return torch.randn(numel, generator=torch.Generator().manual_seed(0)).to(dtype)


# ---- what bench gnn records ----


def test_ratios_against_values_computed_by_hand():
    time = KernelTime(4, 256, 2, compress=[2.0, 9.0, 4.0], copy=[1.0, 3.0, 1.0], decompress=[3.0], clone=[2.0])
    assert time.compress_ratio == 3.0  # of 2, 3 and 4
    assert time.best_compress_ratio == 2.0
    assert time.decompress_ratio == time.best_decompress_ratio == 1.5


def test_every_width_is_timed_and_threads_are_restored():
    before = torch.get_num_threads()
    times = time_kernels(CPU, 2, bits=(4, 1), mebibytes=1, rounds=3)
    assert torch.get_num_threads() == before
    assert [(time.bits, time.mebibytes, time.threads) for time in times] == [(4, 1, 2), (1, 1, 2)]
    for time in times:
        for seconds in (time.compress, time.copy, time.decompress, time.clone):
            assert len(seconds) == 3
            assert min(seconds) > 0


# ---- taking turns ----


def test_contenders_take_turns_and_the_first_round_does_not_count(monkeypatch):
    order = []
    ticks = itertools.count()
    monkeypatch.setattr(clock.time, "perf_counter", lambda: float(next(ticks)))
    times = clock.in_turn([lambda: order.append("a"), lambda: order.append("b")], rounds=2, device=CPU)
    assert order == ["a", "b"] * 3
    assert times == [[1.0, 1.0], [1.0, 1.0]]


def test_many_calls_share_one_reading_of_the_clock(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(clock.time, "perf_counter", lambda: float(next(ticks)))
    calls = []
    assert clock.in_turn([lambda: calls.append(0)], rounds=1, device=CPU, calls=4) == [[0.25]]
    assert len(calls) == 8


def test_what_an_action_returns_is_freed_outside_of_its_time(monkeypatch):
    events = []

    class Result:
        def __del__(self):
            events.append("freed")

    monkeypatch.setattr(clock.time, "perf_counter", lambda: events.append("clock") or 0.0)
    clock.in_turn([Result], rounds=1, device=CPU)
    assert events == ["clock", "clock", "freed"] * 2


# ---- plain PyTorch ----


@pytest.mark.parametrize("bits", range(1, 9))
def test_plain_packing_is_actcore_s(bits):
    codes = (torch.arange(512) * 37 % 2**bits).to(torch.uint8)
    packed = plain.pack(codes, bits)
    assert torch.equal(packed, actcore.pack_bits(codes, bits))
    assert torch.equal(plain.unpack(packed, bits, 512), codes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", [1, 3, 4, 8])
def test_plain_groups_are_off_by_less_than_a_step(bits, dtype):
    """Less than a step of the group, and what rounding to the dtype adds: half an ulp of a value below 4."""
    x = normal(1024, dtype)
    stored = plain.compress_groups(x, bits)
    y = plain.decompress_groups(stored, bits, 1024)
    assert (y.dtype, y.shape) == (dtype, x.shape)
    step = (stored[2] - stored[1]).double() / (2**bits - 1)
    error = (y - x).double().abs().view(-1, 256)
    assert (error <= step * (1 + 1e-3) + 2 * torch.finfo(dtype).eps).all()
    assert sum(part.nbytes for part in stored) == actcore.compress(x, actcore.GroupAffine(bits)).nbytes


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_plain_float8_is_off_by_half_a_unit_in_the_last_place(dtype):
    """Half of eps of the element, or of the smallest normal: in units of the group's scale."""
    x = normal(1024)
    stored = plain.compress_float8(x, dtype)
    info = torch.finfo(dtype)
    bound = (x.view(-1, 256).abs().clamp(min=stored[1] * info.smallest_normal)) * info.eps / 2 * (1 + 1e-6)
    assert ((plain.decompress_float8(stored) - x).view(-1, 256).abs() <= bound).all()


# ---- the table of cases ----


def test_every_case_runs_with_every_dtype():
    for case in cases():
        for dtype in case.dtypes:
            x = case.prepare(normal(4 * KIB), dtype)
            assert x.dtype == dtype
            for contender in (*yardsticks(x), *(one for other in case.contenders for one in other.contenders(x))):
                assert contender.moved_bytes > 0
                contender.action()


def test_codecs_beside_each_other_store_and_return_the_same():
    """Exact ones return the same values; all take the same bytes, so that they are compared by the same work."""
    for case in cases():
        if not isinstance(case.contenders[0], RoundTrip):
            continue
        x = case.prepare(normal(4 * KIB), case.dtypes[0])
        own, other = case.contenders
        mine, theirs = own.compress(x), other.compress(x)
        assert sum(part.nbytes for part in own.parts(mine)) == sum(part.nbytes for part in other.parts(theirs)), (
            case.name
        )
        if case.name in ("BitMask", "Positive") or case.name.startswith("Narrow"):
            assert torch.equal(own.decompress(mine), other.decompress(theirs))


def test_bytes_that_must_move():
    x = normal(1024)
    compress, decompress = cases()[0].contenders[0].contenders(x)  # GroupAffine, 8 bits: 1024 codes, 4 pairs of bounds
    assert compress.moved_bytes == decompress.moved_bytes == 4096 + 1024 + 32
    copy, clone = yardsticks(x)
    assert copy.moved_bytes == clone.moved_bytes == 8192
    [relu] = Pass("torch", torch.relu).contenders(x)  # x, y, gradients of both; y once more, which is kept
    assert relu.moved_bytes == 5 * 4096
    [gelu] = Pass("torch", torch.nn.functional.gelu).contenders(x)
    assert gelu.moved_bytes == 5 * 4096
    [exp] = Pass("torch", lambda x: x.exp() * 2).contenders(x)  # what is kept is neither: written and read
    assert exp.moved_bytes == 6 * 4096


def test_a_pass_is_forward_and_backward():
    x = normal(1024)
    [contender] = Pass("torch", torch.relu).contenders(x)
    y, (gradient,) = contender.action()
    assert torch.equal(y, torch.relu(x))
    assert torch.equal(gradient != 0, x > 0)
    assert not x.requires_grad


# ---- results ----


def timing(who, what, seconds, moved=1000):
    return Timing(who, what, moved, seconds)


@pytest.fixture
def entry():
    return Measurement(
        "GroupAffine, 4 bits",
        4,
        "float32",
        256 * 2**20,
        {"compress": 1.3, "decompress": 1.1},
        None,
        [
            timing("torch", "copy_", [1.0, 2.0, 1.0], 2000),
            timing("torch", "clone", [2.0, 2.0, 2.0], 2000),
            timing("actcore", "compress", [1.25, 2.0, 2.0]),
            timing("actcore", "decompress", [3.0, 3.0, 3.0]),
            timing("plain PyTorch", "compress", [9.0, 20.0, 11.0]),
        ],
    )


@pytest.fixture
def kernel_results(entry):
    small = dataclasses.replace(entry, nbytes=4 * KIB, targets={})
    training = Measurement(
        "relu", 0, "float32", 2**20, {}, None,
        [
            timing("torch", "copy_", [1.0]),
            timing("torch", "clone", [1.0]),
            timing("actcore", "forward + backward", [3.0]),
            timing("torch", "forward + backward", [4.0]),
        ],
    )  # fmt: skip
    machine = Machine("a processor", 2, "Linux", {"torch": "2.15.0"}, "0123456789abcdef", True, "python", "today")
    libraries = {"bitsandbytes": "0.50", "fewbit": "not installed (No module named 'fewbit')"}
    return KernelResults(machine, "cpu", 3, libraries, ["torchao beside it: no"], [entry, small, training], 90.0)


def test_numbers_of_a_measurement_by_hand(entry):
    compress, decompress = entry.get("actcore", "compress"), entry.get("actcore", "decompress")
    assert entry.ratio(compress) == 1.25  # of 1.25, 1 and 2
    assert entry.ratio(decompress) == 1.5
    assert entry.achievable(compress) == 0.5 / 1.25
    assert entry.achievable(decompress) == 0.5 / 3.0  # of 3, 1.5 and 3 copies
    assert compress.logical_io_gbps == 1000 / 2.0 / 1e9
    assert entry.reached(compress) is True
    assert entry.reached(decompress) is False
    assert entry.reached(entry.get("plain PyTorch", "compress")) is None
    assert entry.call_microseconds("actcore") == 5e6  # of 4.25, 5 and 5 seconds
    assert entry.call_microseconds("plain PyTorch") is None


def test_on_a_gpu_the_target_is_a_fraction_of_the_copy_s_bytes_a_second(entry):
    entry = dataclasses.replace(entry, targets={}, least_achievable=0.3)
    assert entry.reached(entry.get("actcore", "compress")) is True
    assert entry.reached(entry.get("actcore", "decompress")) is False


def test_json_comes_back_as_it_was(kernel_results, tmp_path):
    records.save(kernel_results, tmp_path / "k.json")
    assert records.load(tmp_path / "k.json") == kernel_results


def test_the_tables(kernel_results):
    file = StringIO()
    Console(file=file, width=132).print(report.render(kernel_results))
    text = file.getvalue()
    for part in (
        "compress, 256 MiB a tensor", "1.25 ✓", "1.50 ✗", "10.0", "logical_io_gbps", "logical_io_vs_", "achievable_%",
        "relu", "0.75", "5000000.0 ✗", "bitsandbytes 0.50", "No module named 'fewbit'",
        "left out: torchao beside it: no", "a processor, 2 threads", "commit 0123456789 with changes",
    ):  # fmt: skip
        assert part in text, part


def test_the_chart_is_an_image(kernel_results, tmp_path):
    chart.save_chart(kernel_results, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    only_operators = dataclasses.replace(kernel_results, measurements=kernel_results.measurements[2:])
    with pytest.raises(BenchError, match="a chart shows codecs with float32 or bfloat16"):
        chart.save_chart(only_operators, tmp_path / "chart.png")


# ---- a run ----


def options(**more):
    return dataclasses.replace(measure.Options(CPU, 1, (4 * KIB,), 1, names=("GroupAffine",), bits=(4,)), **more)


def test_a_choice_that_fits_nothing_is_said():
    with pytest.raises(BenchError, match=r"no case has 'huffman' in its name; there are GroupAffine, 8 bits; "):
        measure.run(options(names=("huffman",)))
    with pytest.raises(BenchError, match="no case has the codec, bits and dtype that were chosen together"):
        measure.run(options(names=("Positive",), bits=(4,)))


def test_targets_are_for_large_tensors_only(monkeypatch):
    [case] = [case for case in cases() if case.name == "GroupAffine, 4 bits"]
    assert measure._targets(case, "float32", 256 * 2**20, "cpu") == {"compress": 1.3, "decompress": 1.1}
    assert measure._targets(case, "bfloat16", 256 * 2**20, "cpu") == {"compress": 2.0, "decompress": 1.7}
    assert measure._targets(case, "float32", 64 * 2**20, "cpu") == {}
    assert measure._targets(case, "float16", 256 * 2**20, "cpu") == {}


def test_a_library_that_fails_is_left_out_and_said(monkeypatch):
    def fail(x):
        raise RuntimeError("no kernel\nfor this")

    broken = RoundTrip("torchao", fail, fail, list)
    found = [
        dataclasses.replace(case, rivals=(("torchao", lambda: broken), ("bitsandbytes", lambda: broken)))
        for case in cases()
    ]
    monkeypatch.setattr(measure, "cases", lambda: found)
    states = {"torchao": "0.18", "bitsandbytes": "not installed (No module)", "fewbit": "not installed"}
    monkeypatch.setattr(rivals, "present", lambda: states)
    results = measure.run(options(dtypes=("float32",)))
    assert results.skipped == ["torchao beside GroupAffine, 4 bits, float32: RuntimeError: no kernel"]
    [entry] = results.measurements
    assert {one.who for one in entry.timings} == {"torch", "actcore", "plain PyTorch"}


def test_others_take_turns_of_their_own_and_are_compared_with_their_own_copies():
    [entry] = measure.run(options(dtypes=("float32",))).measurements
    turns = [(one.beside, one.who, one.what) for one in entry.timings]
    assert turns == [
        (0, "torch", "copy_"),
        (0, "torch", "clone"),
        (0, "actcore", "compress"),
        (0, "actcore", "decompress"),
        (1, "torch", "copy_"),
        (1, "torch", "clone"),
        (1, "plain PyTorch", "compress"),
        (1, "plain PyTorch", "decompress"),
    ]
    plain, copy = entry.timings[6], entry.timings[4]
    assert entry.ratio(plain) == statistics.median(a / b for a, b in zip(plain.seconds, copy.seconds, strict=True))


def test_a_library_that_is_not_there_says_why():
    states = rivals.present()
    assert list(states) == ["bitsandbytes", "torchao", "fewbit"]
    assert all(state.startswith(("not ", "of unknown version")) or state[0].isdigit() for state in states.values())


def test_a_run_from_end_to_end(capsys, tmp_path):
    json_file, picture = tmp_path / "k.json", tmp_path / "k.png"
    command = (
        "kernels --case GroupAffine --bits 4 --dtype float32 --size 4KiB --size 128KiB --rounds 2 --threads 1 --alone"
    )
    assert cli.main([*command.split(), "--json", str(json_file), "--chart", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "compress, 128 KiB a tensor" in shown
    assert "Small tensors" in shown
    results = records.load(json_file)
    assert [(entry.case, entry.nbytes) for entry in results.measurements] == [
        ("GroupAffine, 4 bits", 4 * KIB),
        ("GroupAffine, 4 bits", 128 * KIB),
    ]
    assert [(one.who, one.what, len(one.seconds)) for one in results.measurements[0].timings] == [
        ("torch", "copy_", 2),
        ("torch", "clone", 2),
        ("actcore", "compress", 2),
        ("actcore", "decompress", 2),
    ]
    assert results.machine.threads == 1
    assert set(results.machine.versions) == {"torch", "actcore"}

    assert cli.main(["show", str(json_file), "--chart", str(tmp_path / "again.png")]) == 0
    assert capsys.readouterr().out == shown
    assert (tmp_path / "again.png").read_bytes() == picture.read_bytes()
