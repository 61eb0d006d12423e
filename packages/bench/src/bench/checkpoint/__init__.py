"""``python -m bench checkpoint``: training with planned recomputation beside plain training, model by model.

architectures.py    the models: how each is built, on what inputs, and what was published of it
image_models.py     those of torchvision, and timm's Swin
text_models.py      those of transformers
cells.py            networks of cells: the operations, a cell, the network
nasnet.py, amoebanet.py, darts.py    the cells themselves
unet.py             a U-Net
sizes.py            at which sizes a model is measured
contenders.py       the ways to train it
step.py             one step
command.py          its options, and what makes it a bench
measure.py          a run: which parts, in which order
planning.py         part "plan": what is planned, at any size
memory.py           part "memory": activation peaks, in a process of their own
step_time.py        part "time": steps in turn, and how far their gradients differ; part "compile": the same, compiled
results.py          what is recorded
targets.py          what is asked for, and what was found
report.py           the tables, notes.py what stands below them
chart.py            the chart
"""
