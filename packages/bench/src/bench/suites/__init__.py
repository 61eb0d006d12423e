"""The benchmarks. Each suite measures models in ways, and has files of the same names.

results.py  the entries that it records, each declared once
measure.py  the run: which entries, in which order
report.py   tables, notes and targets; chart.py draws
published.py  numbers of papers, where some are compared with

gnn, vision, text, llm    training by kind of model
kernels                   codecs and operators
memory                    bytes, peaks and times of ways to train: activations, checkpoint, systems
search                    the largest model or batch within a memory limit
fewbit, sensitivity       few-bit activations and randomized layers; adaptive levels
gpu_stages.py             entries and tables of what an H100 found
"""
