"""Text files whose lines are sequences: plain text, and objects of JSON.

Read `text.py` first.
"""
