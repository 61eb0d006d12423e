"""From an operator and a role to what backward needs, and to the codecs that have it; for eager and compiled code."""
