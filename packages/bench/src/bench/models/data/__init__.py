"""Graphs, images and sentences, from files at hand, downloaded, or generated."""
