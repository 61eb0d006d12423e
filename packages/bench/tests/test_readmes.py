"""The tables of the four READMEs: every published row has one here, measured or said not to be."""

from dataclasses import replace

import pytest

from bench.cli import records
from bench.errors import BenchError
from bench.models.architectures import ARCHITECTURES
from bench.models.dense import DENSE
from bench.pages import rendered, to_markdown
from bench.readmes import actnn, checkpointing, claims, fewbit, gact
from bench.readmes.tables import TABLES
from bench.results.machine import Machine
from bench.results.record import Record
from bench.suites.fewbit.results import Peak as RobertaPeak
from bench.suites.gnn.results import Curve
from bench.suites.memory.checkpoint.results import Peak
from bench.suites.search.results import Search
from bench.suites.vision.compression.results import Cell
from bench.suites.vision.dense.results import DenseCell
from bench.ways.checkpoints import LEAST, LEAST_MASKS, PLAIN

from .gnn_records import replaced

MACHINE = Machine("a processor", 2, "Linux", {"torch": "2.15.0"}, "0123456789abc", False, "python -m bench", "today")
MIB = 1 << 20


def rows(folder, name):
    return to_markdown(TABLES[name](folder).table).splitlines()[2:]


def test_every_row_is_there_without_results(tmp_path):
    assert [row.split(" | ")[0][2:] for row in rows(tmp_path, "fewbit")] == list(fewbit.PUBLISHED)
    published = [name for name, one in ARCHITECTURES.items() if one.published is not None]
    assert len(published) == 18
    assert [row.split(" | ")[0][2:] for row in rows(tmp_path, "checkpointing")] == published
    assert len(rows(tmp_path, "gact")) == len(gact.ARCHITECTURES) * (1 + len(gact.LEVELS))
    assert len(rows(tmp_path, "claims")) == len(claims.CLAIMS)
    assert [row.split(" | ")[0][2:] for row in rows(tmp_path, "actnn")] == [one.title for one in DENSE.values()]
    for name in TABLES:
        assert all("not measured" in row for row in rows(tmp_path, name))


def test_checkpointing_takes_channels_last_first(tmp_path):
    def save(file, plain, least):
        peaks = [Peak("vgg11", way, 64, 224, nbytes * MIB) for way, nbytes in ((PLAIN, plain), (LEAST, least))]
        records.save(Record("checkpoint", MACHINE, {"channels_last": False}, peaks), tmp_path / file)

    save(checkpointing.USUAL, 1000, 900)
    [row] = [row for row in rows(tmp_path, "checkpointing") if row.startswith("| vgg11 ")]
    assert "| 3,577 | 2,781 | 22 | 34 | 1,000 | 900 | 10.0 ✗ |" in row
    assert row.endswith("| --model vgg11 |")
    save(checkpointing.CHANNELS_LAST, 2000, 1500)
    [row] = [row for row in rows(tmp_path, "checkpointing") if row.startswith("| vgg11 ")]
    assert "| 2,000 | 1,500 | 25.0 ✓ |" in row
    assert row.endswith("| --model vgg11 --channels-last |")


def test_one_bit_relus_have_a_row_of_their_own(tmp_path):
    ways = ((PLAIN, 1000), (LEAST, 800), (LEAST_MASKS, 600))
    peaks = [Peak("alexnet", way, 1024, 224, nbytes * MIB) for way, nbytes in ways]
    records.save(Record("checkpoint", MACHINE, {"channels_last": False}, peaks), tmp_path / checkpointing.CHANNELS_LAST)
    first, second, *_ = rows(tmp_path, "checkpointing")
    assert "| 1,000 | 800 | 20.0 ✗ |" in first
    assert second.startswith("| the same, 1-bit ReLUs |")
    assert "| 1,000 | 600 | 40.0 ✓ |" in second


def test_fewbit_savings(tmp_path):
    peaks = [
        RobertaPeak(
            way,
            "",
            16,
            kept_bytes=[MIB],
            peak_bytes=[(nbytes + 5) * MIB],
            raw_bytes=[1000 * MIB + nbytes * MIB],
            gradient_bytes=5 * MIB,
        )
        for way, nbytes in (("vanilla", 1000), ("3-bit GELU", 860), ("both", 700))
    ]
    records.save(Record("fewbit", MACHINE, {"device": "cpu"}, peaks), tmp_path / fewbit.FILE)
    vanilla, gelu, linear, both = rows(tmp_path, "fewbit")
    assert "| vanilla | 11.30 |  | 1,000.0 |" in vanilla
    assert "| 9.75 | 13.8 | 860.0 | 14.0 ✓ | 865.0 | 13.9 ✓ | 1,860.0 | 7.0 ✗ |" in gelu
    assert "not measured" in linear
    assert "| 7.60 | 32.7 | 700.0 | 30.0 ✗ | 705.0 | 29.9 ✗ |" in both


def test_actnns_layers_beside_their_accuracies(tmp_path):
    def cell(model, way, **counts):
        return DenseCell(model, way, 2, 64, **counts)

    plain = {"live_bytes": 1300, "original_bytes": 1200, "peak_bytes": 1000, "standing_peak_bytes": 1100}
    small = {"live_bytes": 200, "stored_bytes": 90, "peak_bytes": 250, "standing_peak_bytes": 200}
    cells = [
        cell("fcn_resnet50", "plain", **plain),
        cell("fcn_resnet50", actnn.WAY, **small, gradient_error=0.125),
        cell("retinanet_resnet50_fpn", "plain", **plain),
        cell("retinanet_resnet50_fpn", actnn.WAY, **small, losses=[1.0, 2.0]),
        cell("fpn_resnet50", "plain", **plain),
        cell("fpn_resnet50", actnn.WAY, failure="it ended"),
    ]
    records.save(Record("vision", MACHINE, {"device": "cpu"}, cells), tmp_path / actnn.FILE)
    found = {row.rpartition("--model ")[2].partition(" ")[0]: row for row in rows(tmp_path, "actnn")}
    # 100 bytes by the allocator, where the graph has 90.
    assert "| mIoU, Cityscapes | 73.6 | 72.9 | 12.0 | 5.50 | 0.125 |" in found["fcn_resnet50"]
    assert "| 36.5 | 36.3 | 12.0 | 5.50 | not comparable |" in found["retinanet_resnet50_fpn"]
    assert "| not measured |" in found["fpn_resnet50"]
    assert "| not measured |" in found["moco_v2_resnet50"]


def test_a_page_has_a_readmes_table_with_its_machine(tmp_path):
    records.save(Record("fewbit", MACHINE, {"device": "cpu"}), tmp_path / fewbit.FILE)
    page = rendered("<!-- readme fewbit -->\n<!-- /readme -->\n", tmp_path).text
    assert "| RoBERTa-base | peak, GiB published |" in page
    assert "\n\n`python -m bench`; a processor, 2 threads" in page


def test_a_file_that_holds_something_else(tmp_path):
    records.save(Record("fewbit", MACHINE, {"device": "cpu"}), tmp_path / checkpointing.USUAL)
    with pytest.raises(BenchError, match="must hold results of checkpoint"):
        TABLES["checkpointing"](tmp_path)


def test_gacts_rows_are_those_of_the_graph_networks(results, tmp_path):
    records.save(results, tmp_path / gact.FILES[1])
    found = rows(tmp_path, "gact")
    assert found[0].startswith("| gcn | full precision | ")
    assert "not measured" not in found[0]
    assert found[1].endswith("| --model gcn --level L1 --dataset cora --seeds 2 |")
    assert "not measured" not in found[1]
    assert "not measured" in found[2]


def test_gacts_rows_are_of_the_most_seeds(results, tmp_path):
    def accuracy(curves):
        records.save(replaced(results, curves=curves), tmp_path / gact.FILES[1])
        return rows(tmp_path, "gact")[0].split(" | ")[2]

    records.save(results, tmp_path / gact.FILES[0])
    [both] = {row.split(" | ")[2] for row in rows(tmp_path, "gact")[:1]}
    curves = [replace(curve, test=[40.0, curve.test[-1] + 5]) for curve in results.of(Curve)]
    assert accuracy([curve for curve in curves if curve.seed == 0]) == both
    assert accuracy(curves) != both  # as many, and later


def test_claims_have_the_lesser_of_two_peaks(tmp_path):
    def cell(way, **counts):
        return Cell("resnet50", way, 8, 224, True, **counts)

    cells = [
        cell("plain", live_bytes=1200, original_bytes=1000, peak_bytes=1000, standing_peak_bytes=1100),
        cell("L2.2", live_bytes=280, original_bytes=1000, stored_bytes=75, peak_bytes=250, standing_peak_bytes=200),
    ]
    records.save(Record("vision", MACHINE, {"device": "cpu"}, cells), tmp_path / claims.COMPRESSION)
    searches = [
        Search("resnet50-batch", way, largest=largest, ended=True) for way, largest in (("plain", 10), ("Q-layers", 70))
    ]
    records.save(Record("search", MACHINE, {"device": "cpu"}, searches), tmp_path / claims.SEARCH)
    found = {row.split(" | ")[1]: row for row in rows(tmp_path, "claims")}
    assert "| 11.3 | 12.50 ✓ |" in found["activations of ResNet-50, 2 bits"]  # 80 bytes by the allocator
    assert "| 4.4 | 4.00 ✗ |" in found["peak of ResNet-50, 2 bits"]
    assert "| 12 | not measured |" in found["activations, 2 bits"]
    batches = [row for row in rows(tmp_path, "claims") if "larger batch, least" in row]
    assert "| 4.2 | not measured |" in batches[0]
    assert "| 6.6 | 7.00 ✓ |" in batches[1]
