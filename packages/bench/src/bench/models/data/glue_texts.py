"""The sentences of a task: MRPC from a folder, GLUE's from the hub, or generated ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.models.data import generated_sentences as generated
from bench.models.data import mrpc as sentences
from bench.models.data.glue_tasks import AUTO, GENERATED, TASKS
from bench.models.libraries import needs

_HUB = "nyu-mll/glue"


class NotAtHand(BenchError):
    """A task's sentences, or a network's weights, cannot be had here."""


@dataclass(frozen=True)
class Part:
    """Sentences and what is to be guessed of them.

    Attributes:
        sentences: one or two for each label.
        labels: classes from 0, or numbers.
    """

    sentences: list[tuple[str, ...]]
    labels: list[float]


@dataclass(frozen=True)
class Texts:
    """A task's sentences.

    Attributes:
        task: a name in ``TASKS``.
        what: which they are, in words.
        train, held_out: to train on, and to test on.
        ceiling: of the first metric, in percent; ``None`` where nobody knows it.
    """

    task: str
    what: str
    train: Part
    held_out: Part
    ceiling: float | None = None


def load(task: str, data_root: Path | None = None, tell: Callable[[str], None] = print) -> Texts:
    """The sentences of a task.

    Args:
        task: a name in ``TASKS``. ``"auto"`` is MRPC where it is at hand in a folder, otherwise the generated task.
        data_root: folder with ``mrpc/`` in it; default: ``ACTCORE_DATA``.
        tell: is given one line if generated sentences stand in for what is not at hand.

    Raises:
        BenchError: the task is unknown; the folder was named and lacks MRPC; a file is damaged.
        NotAtHand: the hub cannot be reached.
        MissingLibrary: datasets, which reaches it, is not installed.
    """
    if task not in (AUTO, *TASKS):
        raise BenchError(f"task must be one of {', '.join((AUTO, *TASKS))}, got {task!r}")
    if task == GENERATED:
        return _generated()
    if task in (AUTO, "mrpc"):
        try:
            return _mrpc(sentences.files(data_root))
        except sentences.MissingSentences as error:
            if data_root is not None:
                raise
            if task == AUTO:
                tell(f"Generated sentences are used: {error}.")
                return _generated()
    return _glue(task)


def _generated() -> Texts:
    train, held_out = (_part([((sentence,), label) for sentence, label in half]) for half in generated.sentences())
    return Texts(GENERATED, f"generated sentences, good or bad ({_counts(train, held_out)})", train, held_out, 100.0)


def _mrpc(files: Sequence[Path]) -> Texts:
    train, held_out = (_part([((row.first, row.second), row.label) for row in sentences.rows(file)]) for file in files)
    return Texts("mrpc", f"MRPC as first published ({_counts(train, held_out)})", train, held_out)


def _glue(task: str) -> Texts:
    datasets = needs("datasets")
    wanted = TASKS[task]
    try:
        found = datasets.load_dataset(_HUB, wanted.source)
        train, held_out = (_glue_part(found[split], wanted.columns) for split in ("train", wanted.held_out))
    except Exception as error:  # of the hub, of its client or of the network: as many classes as they please
        raise NotAtHand(
            f"the sentences of {task} cannot be had from the hub ({type(error).__name__}: {_line(error)}); run it once "
            "where there is a network, or use --task mrpc with --data-root, or --task generated"
        ) from error
    return Texts(task, f"GLUE's {task} ({_counts(train, held_out)})", train, held_out)


def _glue_part(rows: Any, columns: Sequence[str]) -> Part:
    given = zip(*(rows[column] for column in columns), strict=True)
    return _part(list(zip(given, rows["label"], strict=True)))


def _part(examples: Sequence[tuple[tuple[str, ...], float]]) -> Part:
    return Part([given for given, _ in examples], [label for _, label in examples])


def _counts(train: Part, held_out: Part) -> str:
    return f"{len(train.labels):,} for training, {len(held_out.labels):,} held out"


def _line(error: Exception) -> str:
    """Its first line: what follows is advice of others."""
    return (str(error).strip().splitlines() or ["no reason given"])[0]
