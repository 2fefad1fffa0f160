"""HDF5 files of the layout of RETURNN's `HDFDataset`, read and written.

Nothing outside knows that layout. Read `source.py` first, then `layout.py`.
"""
