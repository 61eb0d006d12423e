"""``python -m bench vision``: networks for images, compressed by hooks and by layers, in parts that can be run alone.

command.py      its options, and what makes it a bench
measure.py      a run: which parts, in which order
models.py       the originals' models at full size
compression/    part "compression": what they keep for backward, and their peaks, in every way
dense/          part "dense": the same of models for detection, segmentation and self-supervised learning
published.py    what was published of them
images.py       the images that are trained on
resnet.py       ResNet-20, and a batch of images for it
memory.py       part "memory": what ResNet-50 keeps for backward, in a process of its own
training.py     part "training": a model, compressed, beside full precision, seeds in pairs
tasks.py        what is trained on what: ResNet-20 on those images, or a model of full size on a folder
folder.py       a folder of images in the form of ImageNet
gradient_variance.py  measures the variance that rounding gives a gradient
variance.py     parts "variance" and "ablation": the gradient's variance, predicted and measured
step_time.py    part "time": a step of ResNet-20 beside torch's own, in turn
results.py      what is recorded
report.py       the tables, notes.py what stands below them
chart.py        the chart
"""
