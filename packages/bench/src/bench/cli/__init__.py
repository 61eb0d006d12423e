"""The command line: ``python -m bench COMMAND``.

main.py       parses arguments, runs a command, and prints errors in one line
suites.py     all benchmarks by name
bench.py      a benchmark as a command; gnn.py and the like have the options of each
options.py    options that benchmarks share; arguments.py has the types of their values
commands.py   ``show`` and ``report``; records.py loads and renders a record of any kind
markdown.py   pages of recorded files
"""
