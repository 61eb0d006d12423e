"""What there is to know of a task before anything is trained: what who has learned nothing reaches."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import numpy as np

from bench.models.data.glue_tasks import TASKS
from bench.models.data.glue_texts import Texts
from bench.suites.text.metrics import METRICS
from bench.suites.text.results import Facts


def task_facts(texts: Texts) -> Facts:
    """Metrics of the most frequent label, or of the mean of numbers, and the loss of who knows the frequencies."""
    task = TASKS[texts.task]
    labels, trained = np.array(texts.held_out.labels), texts.train.labels
    counts = Counter(trained)
    same = fmean(trained) if task.classes == 1 else counts.most_common(1)[0][0]
    guesses = np.full(len(labels), same)
    majority = {name: METRICS[name](labels, guesses) for name in task.metrics}
    if task.classes == 1:
        loss = float(np.mean((labels - same) ** 2))
    else:
        # A label that was never trained on would cost without end; one more of each bounds it.
        total = len(trained) + task.classes
        loss = -fmean(np.log((counts[label] + 1) / total) for label in texts.held_out.labels)
    return Facts(texts.task, texts.what, majority, float(loss), texts.ceiling)
