"""Whether the tests that have a long form run in it: nox's sessions of the tag ``reliability`` ask for that."""

import os

LONG = os.environ.get("ACTCORE_LONG") == "1"
