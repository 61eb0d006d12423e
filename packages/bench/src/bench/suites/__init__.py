"""The benchmarks. Each suite is a command, and has files of the same names.

entries.py  what it records, each kind of entry declared once
cell.py     how one entry is measured; where there are several kinds, files by kind, such as training.py
command.py  its options, and the run: which entries, in which order
report.py   the columns of its tables, and its chart

gnn, vision, text, llm    training by kind of model
kernels                   codecs and operators
memory                    bytes, peaks and times of ways to train: activations, checkpoint, systems
search                    the largest model or batch within a memory limit
fewbit, sensitivity       few-bit activations and randomized layers; adaptive levels
curves                    four tasks trained in four ways with the same weights and batches
gpu_stages.py             entries and tables of what an H100 found
"""
