"""What crosses between the processes of a loader: starts of epochs, groups of items, messages, errors.

Decides no order and runs no pipe. Read `wire.py` first.
"""
