"""``tools/gpu.sh``: all that has to be found out on a GPU, in stages of minutes.

What starts the stages imports torch and nothing else that might be missing, since the first of them builds actcore. All
work is done in other processes, whose limits it keeps.

stages.py         the stages by name; claims.py: what each of them would settle
place.py          where a stage runs: device, sizes, folders, the environment of its processes
cases.py          one process of a stage, and what its rows are read from
run.py            cases within a stage's time, as results.py has them
report.py         tables; stage_report.py: the same of a record
build.py          versions, ceilings and the build: facts.py, building.py and ceilings.py are its processes
tests.py          the tests that take a GPU
sanitize.py       compute-sanitizer over sanitized.py
kernels.py        ``python -m bench kernels``, as fractions of a copy
to_deadline.py    a stage of one command that stops itself
models.py, search.py    such: ``python -m bench systems`` and ``search``
"""
