"""How Headrace shows itself: `repr`, HTML in notebooks, bars of progress, plots. Start with `card.py`.

This room knows no dataset and no loader: each class fills in a `Card` of its own.
"""
