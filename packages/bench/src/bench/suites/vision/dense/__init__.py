"""Part ``dense``: detection, segmentation and self-supervised learning, the models of ActNN's README.

cell.py         one model in one way, in processes of its own, and its gradient's error
measure.py      which cells are wanted
results.py      what is recorded
"""
