"""``python -m bench activations``: what compression does to models of any kind, in parts that can be run alone.

cases.py        the models
measure.py      a run: which parts, in which order
levels.py       part "models": what is stored, the gradient's error, a step's time
overhead.py     part "overhead": what a saved tensor costs where the tensors are tiny
memory.py       part "memory": what the process holds after a forward, beside what the report says
adaptation.py   part "adaptation": what it costs to measure which tensors matter
initial.py      part "initial": the gradient's error of six image models as they are made
results.py      what is recorded
report.py       the tables and the notes below them
chart.py        the chart
"""
