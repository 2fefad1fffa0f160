"""Reads sequences by their corpus indices, and decides what is kept in memory. Read `reader.py` first."""
