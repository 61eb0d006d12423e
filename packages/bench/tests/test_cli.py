import dataclasses
import subprocess
from pathlib import Path

import pytest
import torch

from bench.cli import main, suites
from bench.cli.suites import BENCHES
from bench.runner import memory
from bench.runner.memory import Memory
from bench.suites.gnn.entries import Curve


def error_of(capsys, *arguments):
    """The one line on stderr with which a command ends."""
    try:
        code = main.main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code in (1, 2)
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("gnn", "--level", "L9"), ("--level", "'L9'", "L0", "L1.2")),
        (("gnn", "--model", "mlp"), ("--model", "'mlp'", "gcn", "sage", "gat")),
        (("gnn", "--dataset", "pubmed"), ("--dataset", "'pubmed'", "auto", "cora", "citeseer", "digits")),
        (("gnn", "--device", "tpu"), ("--device", "'tpu'", "cpu", "cuda")),
        (("gnn", "--seeds", "0"), ("--seeds", "must be a whole number from 1", "'0'")),
        (("gnn", "--epochs", "ten"), ("--epochs", "must be a whole number from 1", "'ten'")),
        (("gnn", "--data-root", "/nowhere"), ("--data-root must name a folder", "there is no folder /nowhere")),
        (("gnn", "--json", "/nowhere/out.json"), ("/nowhere/out.json", "there is no folder /nowhere")),
        (("gnn", "--chart", "chart.xyz"), ("must end in .png, .svg or .pdf", "chart.xyz")),
        (("gnn", "--level", "L0", "--chart", "chart.png"), ("a chart compares levels", "--level L1")),
        (("kernels", "--bits", "9"), ("--bits", "9")),
        (("kernels", "--group", "100"), ("--group", "must be a multiple of 32", "'100'")),
        (("kernels", "--size", "3KiB"), ("--size", "must be a multiple of 4KiB", "'3KiB'")),
        (("kernels", "--size", "256"), ("--size", "such as 4KiB, 16MiB or 1GiB", "'256'")),
        (("kernels", "--case", "huffman"), ("no case has 'huffman'", "GroupAffine, 8 bits")),
        (("kernels", "--against", "v1"), ("--against", "--estimate")),
        (("kernels", "--estimate", "--size", "4KiB", "--quick"), ("--estimate runs nothing", "--size, --quick")),
        (("kernels", "--json", "/"), ("/ cannot be written: it is a folder",)),
        (("kernels", "--json", "/nowhere/out.json"), ("/nowhere/out.json", "there is no folder /nowhere")),
        (("activations", "--level", "L3"), ("--level", "'L3'", "L1", "L2.2")),
        (("activations", "--json", "/nowhere/out.json"), ("/nowhere/out.json", "there is no folder /nowhere")),
        (("checkpoint", "--model", "mlp"), ("--model", "'mlp'", "resnet50", "gpt2")),
        (("checkpoint", "--memory-limit", "16"), ("--memory-limit", "such as 4KiB, 16MiB or 1GiB", "'16'")),
        (("checkpoint", "--json", "/nowhere/out.json"), ("/nowhere/out.json", "there is no folder /nowhere")),
        (("text", "--task", "glue"), ("--task", "'glue'", "auto", "mrpc", "mnli-mm", "generated")),
        (("text", "--way", "gelu 9 bits"), ("--way", "'gelu 3 bits' (1 to 4)", "got 'gelu 9 bits'")),
        (("text", "--rate", "2"), ("--rate", "between 0 and 1 such as 2e-5", "'2'")),
        (("text", "--json", "/nowhere/out.json"), ("/nowhere/out.json", "there is no folder /nowhere")),
        (("show", "/nowhere/out.json"), ("/nowhere/out.json", "No such file")),
        (("train",), ("'train'", "gnn", "kernels", "show")),
        ((), ("COMMAND",)),
    ],
)
def test_what_is_wrong_is_said_in_one_line(capsys, arguments, parts):
    line = error_of(capsys, *arguments)
    for part in parts:
        assert part in line


def test_the_package_names_every_command():
    import bench

    named = {line.split()[3] for line in bench.__doc__.splitlines() if line.startswith("python -m bench ")}
    [parsers] = [action for action in main._parser()._actions if action.dest == "command" or action.choices]
    assert named == set(parsers.choices)


def test_a_gpu_that_is_not_there(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for command in ("gnn", "kernels"):
        assert "torch finds no usable GPU; use --device cpu" in error_of(capsys, command, "--device", "cuda")


def test_a_refused_download_by_name(capsys, monkeypatch, tmp_path):
    def refuse(url, timeout):
        raise TimeoutError("timed out")

    monkeypatch.delenv("ACTCORE_DATA", raising=False)
    monkeypatch.setenv("PYG_HOME", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    line = error_of(capsys, "gnn", "--dataset", "cora")
    assert "could not be downloaded" in line
    assert "(timed out)" in line
    assert "--dataset digits" in line


@pytest.fixture
def asked(monkeypatch, results, tmp_path):
    """The options of the run that was asked for, in place of the run."""
    monkeypatch.chdir(tmp_path)
    seen = []
    bench = dataclasses.replace(BENCHES["gnn"], run=lambda options: seen.append(options) or results)
    monkeypatch.setattr(main, "BENCHES", {"gnn": bench})
    return seen


def test_defaults(asked):
    assert main.main(["gnn"]) == 0
    [options] = asked
    assert options.models == ["gcn", "sage", "gat"]
    assert options.levels == ["L1", "L1.1", "L1.2"]
    assert (options.dataset, options.device, options.seeds, options.epochs) == ("auto", "cpu", 1, 100)
    assert options.parts == ["train", "memory"]
    assert options.anew
    assert {file.name for file in Path("bench-results").iterdir()} == {"gnn-cpu.json", "gnn-cpu.png"}


def test_an_interrupted_run_says_so_in_one_line(monkeypatch, capsys, tmp_path):
    def interrupt(options):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(main, "BENCHES", {"gnn": dataclasses.replace(BENCHES["gnn"], run=interrupt)})
    assert main.main(["gnn"]) == 130
    assert (
        capsys.readouterr().err
        == "python -m bench: interrupted; the same command continues with the results that --json has written\n"
    )


def test_quick_leaves_out_what_takes_long(asked):
    assert main.main(["gnn", "--quick"]) == 0
    assert asked[-1].models == ["gcn", "sage", "gat"]
    assert main.main(["gnn", "--quick", "--seeds", "3"]) == 0
    assert (asked[-1].models, asked[-1].seeds) == (["gcn", "sage", "gat"], 3)


def test_seeds_make_a_long_run(asked):
    assert main.main(["gnn", "--seeds", "3"]) == 0
    assert asked[-1].models == ["gcn", "sage", "gat", "gcnii"]
    assert asked[-1].parts == ["train", "memory", "kernels"]


def test_quick_gives_way_to_what_is_said(asked):
    assert main.main(["gnn", "--quick", "--epochs", "7", "--model", "gat", "--model", "gcn", "--model", "gat"]) == 0
    [options] = asked
    assert (options.seeds, options.epochs, options.models) == (1, 7, ["gat", "gcn"])
    assert options.parts == ["train", "memory"]


@pytest.mark.usefixtures("no_child")
def test_a_run_from_end_to_end(monkeypatch, counted, capsys, tmp_path):
    """But for what the process takes, which test_memory.py measures of the same function."""
    monkeypatch.setattr(memory, "counters", lambda device: counted)
    json_file, chart = tmp_path / "out.json", tmp_path / "out.png"
    command = "gnn --model gcn --level L1 --dataset digits --quick --epochs 6 --threads 1"
    assert main.main([*command.split(), "--json", str(json_file), "--chart", str(chart)]) == 0
    shown = capsys.readouterr().out
    assert "digits (1,797 nodes" in shown
    assert chart.stat().st_size > 10_000
    results = suites.load(json_file)
    assert [(curve.level, len(curve.losses)) for curve in results.of(Curve)] == [("L0", 6), ("L1", 6)]
    assert [one.level for one in results.of(Memory) if one.peak_bytes] == ["L0", "L1"]
    assert results.machine.threads == 1

    assert main.main(["show", str(json_file), "--chart", str(tmp_path / "again.png")]) == 0
    assert capsys.readouterr().out == shown
    assert (tmp_path / "again.png").read_bytes() == chart.read_bytes()


def test_the_commit_is_the_repository_s():
    from bench.results.machine import Machine

    try:
        expected = subprocess.run(
            ["git", "-C", __file__.rpartition("/")[0], "rev-parse", "HEAD"], check=True, capture_output=True, text=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the tests run outside of a git repository")
    assert Machine.here(torch.device("cpu"), 1).commit == expected
