"""Part ``dense``: detection, segmentation and self-supervised learning, the models of ActNN's README.

models.py       the five models, their inputs and their losses on generated images
moco.py         a step of MoCo v2
segmenter.py    a segmentation network on a feature pyramid
cell.py         one model in one way, in processes of its own, and its gradient's error
measure.py      which cells are wanted
results.py      what is recorded
report.py       the table, beside what was published
"""
