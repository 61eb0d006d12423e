"""``python -m bench curves``: four tasks, learned plainly and compressed with the same weights and batches."""
