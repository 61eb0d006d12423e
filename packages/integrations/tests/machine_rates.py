"""``recorded``: the rates of one machine, by which tests plan, so that they choose the same on every other.

``rates.json`` has the least of five measurements with torch 2.14.1 on two cores of an Intel Xeon, one thread.
"""

import json
from functools import cache
from pathlib import Path

from integrations.capture.costs import calibrating
from integrations.capture.costs.rates import Host, LinearTime, Rates

measure = calibrating._measured


@cache
def recorded(device, index, dtype, threads):
    """Takes the place of ``calibrating._measured``; a GPU is measured."""
    if device != "cpu":
        return measure(device, index, dtype, threads)
    fields = json.loads(Path(__file__).with_name("rates.json").read_text())[str(dtype).removeprefix("torch.")]
    for name in ("store", "restore"):
        fields[name] = {kind: LinearTime(**line) for kind, line in fields[name].items()}
    for name in ("to_host", "from_host"):
        fields[name] = LinearTime(**fields[name])
    fields |= {"host": Host(**fields["host"]), "standardizing": tuple(fields["standardizing"])}
    return Rates(**fields).rounded
