"""Arrays as plain bytes in files: folders of `.npy` and `.npz` files, and `.safetensors`.

`source.py` reads them all by the columns of an index; each format only says where its bytes are. Read `source.py`
first.
"""
