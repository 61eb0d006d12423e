"""``python -m bench search``: the bisection, what is tried and taken up, and what is printed."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.cli import main, suites
from bench.models.sized import RESNET_152, scaled_stages
from bench.results.published import published
from bench.results.record import Record, save
from bench.suites.search import command as measure
from bench.suites.search.bisection import Found, Grid, largest
from bench.suites.search.dimensions import DEFAULT, FAMILIES, MEMORY_LIMITS, NAMES, QUICK, QUICK_LIMITS, dimensions
from bench.suites.search.entries import Search, Trial, find_search, relative_throughput, times_plain
from bench.suites.search.report import figures
from bench.units import GIB, MIB
from bench.ways.general import PLAIN, WAYS

from .rendering import MACHINE, panels, printed


class Border:
    """Fits up to a number; remembers what it was asked."""

    def __init__(self, most, noise=()):
        self.most = most
        self.noise = noise
        self.asked = []

    def __call__(self, value):
        assert value not in self.asked  # a trial takes long
        self.asked.append(value)
        return (value <= self.most) is not (value in self.noise)


@pytest.mark.parametrize("first", [1, 7, 100, 101, 102, 990, 5000])
@pytest.mark.parametrize("most", [1, 2, 37, 100, 101, 999])
def test_the_largest_is_found_from_wherever_it_begins(first, most):
    assert largest(Border(most), Grid(1, 1000, 1), first, 0) == Found(most)
    found = largest(Border(most), Grid(1, 1000, 1), first, 0.05).largest
    assert found <= most
    # The next number is always asked about: below 20 it is farther than 5 %.
    assert found * 1.05 >= most or found == most


def test_at_a_ragged_border_the_answer_fits_and_one_above_it_does_not():
    for first in (90, 97, 100, 120):
        border = Border(100, noise={98, 103})  # fails below the border, and fits above it
        found = largest(border, Grid(1, 1000, 1), first, 0).largest
        assert found <= 100 or found == 103
        assert found not in border.noise or found == 103
        assert found in border.asked
        assert found + 1 in border.asked
        assert not (found + 1 <= 100) is not (found + 1 in border.noise)


def test_a_good_first_guess_is_a_short_search():
    border = Border(104)
    assert largest(border, Grid(1, 1000, 1), 100, 0.05) == Found(104)
    assert border.asked[:3] == [100, 110, 104]
    assert len(border.asked) <= 4


def test_numbers_are_those_of_the_grid():
    border = Border(100)
    assert largest(border, Grid(14, 600, 3), 152, 0) == Found(98)  # 14 + 28 * 3
    assert all((value - 14) % 3 == 0 for value in border.asked)


def test_nothing_fits():
    border = Border(3)
    assert largest(border, Grid(4, 64, 4), 20, 0) == Found(None)
    assert border.asked[-1] == 4  # the least was asked about


@pytest.mark.parametrize("first", [4, 60, 62])
def test_the_cap_is_reached(first):
    assert largest(Border(1000), Grid(4, 62, 4), first, 0.05) == Found(60, capped=True)


@pytest.mark.parametrize("noise", [(95,), (101, 103), (99, 100, 101, 102)])
def test_noise_at_the_border_leaves_a_number_that_was_seen_to_fit(noise):
    border = Border(100, noise)
    found = largest(border, Grid(1, 1000, 1), 60, 0).largest
    assert border(found) if found not in border.asked else (found <= 100) is not (found in noise)
    above = min(value for value in border.asked if value > found and (value <= 100) is (value in noise))
    assert above == found + 1


def test_a_grid_has_numbers():
    with pytest.raises(ValueError, match="0 < least <= most and 0 < step are needed, got 9, 4 and 1"):
        Grid(9, 4, 1)


def test_both_devices_have_the_same_searches():
    for device in ("cpu", "cuda"):
        known = dimensions(device)
        assert tuple(known) == NAMES
        assert set(published("search")["figures"]) <= set(NAMES)
        for dimension in known.values():
            assert dimension.least <= dimension.first <= dimension.most
            assert dimension.family in FAMILIES
        assert set(MEMORY_LIMITS[device]) == set(QUICK_LIMITS[device]) == set(FAMILIES)
    assert set(DEFAULT) <= set(NAMES)
    assert {known[name].family for name in QUICK} == set(FAMILIES)
    assert {figure.way for name in NAMES for figure in figures(name)} <= {*WAYS, ""}


def test_published_figures_are_those_of_the_papers():
    ratios = {figure.system: figure.ratio for figure in figures("resnet50-batch")}
    assert ratios["GACT, 4 bits, swap"] == 4.2  # the least of GACT's abstract
    assert ratios["ActNN L5"] == 6.6  # of ActNN's
    assert max(figure.ratio for figure in figures("bert-large-batch")) == pytest.approx(24.7, abs=0.05)  # as printed


def test_depth_is_scaled_in_proportion():
    assert scaled_stages(152) == RESNET_152
    assert scaled_stages(302) == (6, 16, 72, 6)
    for depth in range(14, 600, 3):
        stages = scaled_stages(depth)
        assert 3 * sum(stages) + 2 == depth
        assert min(stages) >= 1


def test_q_layers_are_searched_where_there_are_convolutions():
    known = dimensions("cpu")
    assert "Q-layers" in measure.searched_ways(known["resnet50-batch"], None)
    assert "Q-layers" not in measure.searched_ways(known["bert-layers"], None)
    assert measure.searched_ways(known["bert-layers"], ["L1", "Q-layers", "L1"]) == [PLAIN, "L1", "Q-layers"]


class Machinery:
    """Stands for the processes: a way fits up to a number."""

    def __init__(self, **most):
        self.most = most
        self.asked = []
        self.broken = None

    def __enter__(self):
        return self

    def __exit__(self, *of):
        pass

    def take(self, request, seconds=None):
        self.asked.append((request.way, request.value))
        if request.way == "save_on_cpu":
            return Trial(request.value, does_not_apply="the model is on the CPU already")
        if self.broken == request.way:
            return Trial(request.value, failure="ended with code -11", crashed=True)
        if request.value > self.most[request.way] * request.memory_limit / MEMORY_LIMITS["cpu"]["gcn"]:
            return Trial(request.value, failure="DefaultCPUAllocator: can't allocate memory")
        return Trial(request.value, fits=True, step_seconds=[0.5, 0.1, 0.2], items=100)


COMMAND = ["search", "--search", "gcn-layers", "--threads", "1", "--precise"]


@pytest.fixture
def machinery(monkeypatch):
    made = Machinery(**{PLAIN: 20, "L1": 90, "L2": 10})
    monkeypatch.setattr(measure, "Trials", lambda: made)
    monkeypatch.setattr(measure.platform, "system", lambda: "Linux")
    return made


def test_what_a_way_reaches_is_proved_by_a_plain_trial(machinery, tmp_path):
    file = tmp_path / "out.json"
    command = [*COMMAND, "--way", "L1", "--way", "L2", "--way", "save_on_cpu", "--json", str(file)]
    assert main.main(command) == 0
    results = suites.load(file)
    found = {search.way: search for search in results.of(Search)}
    assert {way: search.largest for way, search in found.items()} == {
        PLAIN: 20, "L1": 90, "L2": 10, "save_on_cpu": None
    }  # fmt: skip
    assert found[PLAIN].trial(90).failure
    assert (PLAIN, 10) not in machinery.asked  # L2 does not go beyond plain
    assert "already" in found["save_on_cpu"].refusal
    assert len(machinery.asked) == sum(len(search.trials) for search in results.of(Search))
    # A step more would not have fitted.
    assert not found["L1"].trial(91).fits


def test_a_run_is_taken_up_trial_by_trial(machinery, tmp_path, capsys):
    file = tmp_path / "out.json"
    command = [*COMMAND, "--way", "L1", "--json", str(file)]
    assert main.main(command) == 0
    whole, asked = suites.load(file), list(machinery.asked)
    machinery.asked.clear()
    assert main.main(command) == 0
    assert machinery.asked == []
    content = json.loads(file.read_text())
    lost = content["entries"][1]["trials"][4:]
    del content["entries"][1]["trials"][4:]
    content["entries"][1]["ended"] = False
    file.write_text(json.dumps(content))
    assert main.main(command) == 0
    assert machinery.asked == [("L1", trial["value"]) for trial in lost]
    assert suites.load(file).entries == whole.entries
    assert len(asked) == len(set(asked))
    capsys.readouterr()
    assert main.main([*command, "--memory-limit", "8MiB"]) == 1
    assert "another memory limit" in capsys.readouterr().err


@pytest.mark.parametrize(("setting", "other"), [("title", "GCN of 32, 1,000 nodes: layers"), ("optimizer", "sgd")])
def test_other_trainings_of_the_same_name_are_searched_anew(machinery, tmp_path, setting, other):
    """Trials of a smaller model stood under the title of a larger one, and such with SGD beside others with Adam."""
    file = tmp_path / "out.json"
    command = [*COMMAND, "--way", "L1", "--json", str(file)]
    assert main.main(command) == 0
    content = json.loads(file.read_text())
    for search in content["entries"]:
        search[setting] = other
    file.write_text(json.dumps(content))
    asked = machinery.asked[:]
    machinery.asked.clear()
    assert main.main(command) == 0
    assert machinery.asked == asked


def test_a_search_that_becomes_more_precise_has_no_largest_before_it_ends(machinery, tmp_path):
    file = tmp_path / "out.json"
    command = [*COMMAND[:-1], "--way", "L1", "--json", str(file)]
    assert main.main(command) == 0
    assert find_search(suites.load(file), "gcn-layers", "L1").largest is not None
    machinery.broken = "L1"
    assert main.main([*command, "--precise"]) == 0
    search = find_search(suites.load(file), "gcn-layers", "L1")
    assert search.crash
    assert (search.ended, search.largest) == (False, None)


def test_a_crash_ends_a_search_and_not_the_run(machinery, tmp_path):
    file = tmp_path / "out.json"
    machinery.broken = "L1"
    command = [*COMMAND, "--way", "L1", "--way", "L2", "--json", str(file)]
    assert main.main(command) == 0
    results = suites.load(file)
    assert find_search(results, "gcn-layers", "L1").crash == "ended with code -11"
    assert find_search(results, "gcn-layers", "L1").largest is None
    assert find_search(results, "gcn-layers", "L2").largest == 10
    machinery.broken = None
    machinery.asked.clear()
    assert main.main(command) == 0
    assert {way for way, _ in machinery.asked} == {"L1", PLAIN}  # tried again, and then proved
    again = suites.load(file)
    assert find_search(again, "gcn-layers", "L1").largest == 90
    assert not find_search(again, "gcn-layers", "L1").crash


def test_a_crash_that_more_memory_prevents_is_for_want_of_memory(machinery, tmp_path, monkeypatch):
    take, file = machinery.take, tmp_path / "out.json"

    def crashing(request, seconds=None):
        trial = take(request, seconds)
        return replace(trial, crashed=True, failure="ended with code -11") if trial.failure else trial

    monkeypatch.setattr(machinery, "take", crashing)
    assert main.main([*COMMAND, "--way", PLAIN, "--json", str(file)]) == 0
    search = find_search(suites.load(file), "gcn-layers", PLAIN)
    assert search.largest == 20
    assert "with 4 times the memory it finished" in search.trial(21).failure


def searches():
    def trial(value, speed=None, **fields):
        return Trial(value, fits=speed is not None, step_seconds=[1 / speed] if speed else [], items=value, **fields)

    of = partial_search
    return [
        of(PLAIN, 10, [trial(10, 2.0), trial(40, failure="can't allocate memory"), trial(11), trial(60, 2.0)]),
        of("L1", 40, [trial(40, 1.0)]),
        of("L2", 60, [trial(60, 0.5)], capped=True),
        of("L2.2", 70, [trial(70, 0.5, finite=False)]),
        of("Q-layers", None, [trial(8, failure="ended with code -11", crashed=True)], ended=False),
        of("each block (torch)", 5, [trial(5, 4.0)]),
    ]


def partial_search(way, found, trials, capped=False, ended=True):
    title = "ResNet-50, 64 x 64: batch"
    return Search("resnet50-batch", way, title, "images", 128 * MIB, found, capped, 0.05, ended, trials)


SETTINGS = {"device": "cpu", "memory_limits": dict(MEMORY_LIMITS["cpu"]), "seed": 0}
RESULTS = Record("search", MACHINE, SETTINGS, searches(), ["swin: no timm"])


def test_the_report_has_measured_beside_published(tmp_path):
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    save(RESULTS, file)
    assert suites.load(file) == RESULTS
    assert main.main(["show", str(file), "--chart", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    found_text = printed(RESULTS, 200)
    rows = {line.split("  ")[0].strip(): " ".join(line.split()) for line in found_text.splitlines()}
    # 40 of 10; GACT's 448 of 160; 40 images in 1 s, and twice plain's 10 in 0.5 s.
    assert rows["L1"] == "L1 40 4.00 2.80 40.0 2.00 failed GACT, 4 bits: 160 -> 448"
    assert rows["L2"].startswith("L2 ≥ 60 ≥ 6.00")
    assert "finished" in rows["L2"]
    assert "its loss is not finite" in rows["L2.2"]
    assert "crashed: ended with code -11" in rows["Q-layers"]
    assert rows["each block (torch) *"].startswith("each block (torch) * 5 0.50")
    text = " ".join(found_text.split())
    assert "6.60 ActNN L5: 160 -> 1,056" in text
    assert "within 128 MiB" in text
    assert "Left out: swin: no timm" in text
    assert "plain finished at 60, the largest of L2, too" in text


def test_a_bar_of_what_does_not_train_says_so():
    words = {bar.label: bar.words for bar in panels(RESULTS)[0].bars}
    assert "loss not finite" in words["L2.2"]
    assert "loss not finite" not in words["L1"]


def test_graph_networks_take_adam():
    found = dimensions("cpu")
    assert {found[name].optimizer for name in ("gcn-layers", "gcn-hidden")} == {"adam"}


def test_what_is_not_known_is_not_compared():
    alone = Record("search", MACHINE, SETTINGS, [partial_search("L1", 40, [])])
    assert times_plain(alone, alone.entries[0]) is None
    assert relative_throughput(alone, alone.entries[0]) is None
    found_text = printed(alone)
    assert "L1" in found_text


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--search", "vgg-batch"), ("--search", "'vgg-batch'", "resnet50-batch")),
        (("--way", "L9"), ("--way", "'L9'", "L2.2")),
        (("--memory-limit", "16"), ("--memory-limit", "such as 4KiB, 16MiB or 1GiB")),
        (("--family", "gcn", "--search", "bert-layers"), ("--family gcn has no search named bert-layers",)),
        (("--json", "/nowhere/out.json"), ("there is no folder /nowhere",)),
    ],
)
def test_what_is_wrong_is_said_in_one_line(capsys, arguments, parts):
    try:
        code = main.main(["search", *arguments])
    except SystemExit as ended:
        code = ended.code
    assert code in (1, 2)
    [line] = capsys.readouterr().err.splitlines()
    for part in parts:
        assert part in line


def test_a_limit_that_cannot_be_kept_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(measure.platform, "system", lambda: "Darwin")
    assert main.main(["search"]) == 1
    assert "can be limited only on Linux, got Darwin; use --device cuda" in capsys.readouterr().err
    monkeypatch.setattr(measure.platform, "system", lambda: "Linux")
    assert main.main(["search", "--memory-limit", "1048576GiB"]) == 1
    assert "must be at most the machine's memory, " in capsys.readouterr().err
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main.main(["search", "--device", "cuda"]) == 1
    assert "torch finds no usable GPU" in capsys.readouterr().err

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=8 * GIB))
    assert main.main(["search", "--device", "cuda"]) == 1
    assert "must be at most the GPU's memory, 8 GiB, got 16 GiB" in capsys.readouterr().err
