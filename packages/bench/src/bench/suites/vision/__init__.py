"""``python -m bench vision``: networks for images, compressed by hooks and by layers, in parts that can be run alone.

measure.py      a run: which parts, in which order
compression/    part "compression": what they keep for backward, and their peaks, in every way
dense/          part "dense": the same of models for detection, segmentation and self-supervised learning
published.py    what was published of the models, and what is asked of ResNet-50
memory.py       part "memory": what ResNet-50 keeps for backward, in a process of its own
training.py     part "training": a model, compressed, beside full precision, seeds in pairs
tasks.py        what is trained on what: ResNet-20 on those images, or a model of full size on a folder
gradient_variance.py  measures the variance that rounding gives a gradient
variance.py     parts "variance" and "ablation": the gradient's variance, predicted and measured
step_time.py    part "time": a step of ResNet-20 beside torch's own, in turn
results.py      what is recorded
report.py       the tables and the notes below them; memory_report.py: of compression and dense
chart.py        the chart
"""
