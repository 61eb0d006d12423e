"""The command line: ``python -m bench COMMAND``.

main.py       parses arguments, runs a command, and prints errors in one line
suites.py     all benchmarks and kinds of record by name
markdown.py   ``report``: pages of recorded files
"""
