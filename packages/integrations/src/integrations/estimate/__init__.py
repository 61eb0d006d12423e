"""Whether a training will fit: forecasts of levels and plans, and explanations of errors out of memory."""
