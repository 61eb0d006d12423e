"""Part ``compression``: what the originals' models keep for backward, and their peaks, in every way of compressing.

cell.py         one model in one way, in processes of its own
peaks.py        the peak of a step, and the operator in which it is reached
measure.py      which cells are wanted
results.py      what is recorded
"""
