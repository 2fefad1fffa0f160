"""Refuses HDF5 files that have parts in other files.

An HDF5 file can name other files of the machine as the location of its data: by links, as raw bytes ("external
storage"), or as pieces of a dataset ("virtual dataset"). So a file from elsewhere could make a program read, and pass
on, what the author of that file has no access to; and changes of those files would go unnoticed. Links that stay inside
the file are followed, here by hand: HDF5 is asked to open a name only after every link on the way was seen to stay
inside.
"""

from __future__ import annotations

import os

import h5py
from h5py import h5d, h5g, h5l, h5o

from headrace.errors import SourceError

_MAX_SOFT_LINKS = 100  # on the way to one object; with more it is a circle

# Everything that readers of RETURNN's HDF layout open: these, and every member of the groups.
_NAMES = (b"inputs", b"seqLengths", b"seqTags", b"times", b"labels", b"targets/size")
_GROUPS = (b"targets/data", b"targets/labels")


def refuse_other_files(file: h5py.File, path: str) -> None:
    """Look at every part of the layout, and read none: some 10 us for each.

    Raises:
        SourceError: A part is in another file, or its links go round in a circle.
    """
    root = h5g.open(file.id, b"/")
    for name in _NAMES:
        _check(root, root, name, path)
    for group_name in _GROUPS:
        group = _check(root, root, group_name, path)
        for name in list(group) if isinstance(group, h5g.GroupID) else ():
            _check(root, group, name, path)


def _check(root: h5g.GroupID, group: h5g.GroupID, name: bytes, path: str) -> h5g.GroupID | h5d.DatasetID | None:
    """Return the object of a name, if there is one, after a look at where it is."""
    found = _follow(root, group, name, path)
    if isinstance(found, h5d.DatasetID):
        properties = found.get_create_plist()
        if properties.get_external_count():
            raise _outside(name, f"has its data in the file {os.fsdecode(properties.get_external(0)[0])!r}", path)
        if properties.get_layout() == h5d.VIRTUAL:
            raise _outside(name, "is a virtual dataset, whose pieces may be in other files", path)
    return found


def _follow(root: h5g.GroupID, group: h5g.GroupID, name: bytes, path: str) -> h5g.GroupID | h5d.DatasetID | None:
    """Go from a group to a name, step by step; None if a step is missing."""
    here, steps, num_soft_links = group, name.split(b"/")[::-1], 0
    while steps:
        step = steps.pop()
        if step in (b"", b"."):
            continue
        if not isinstance(here, h5g.GroupID) or not here.links.exists(step):
            return None
        kind = here.links.get_info(step).type
        if kind == h5l.TYPE_HARD:
            here = h5o.open(here, step)
            continue
        if kind != h5l.TYPE_SOFT:
            other = f" {os.fsdecode(here.links.get_val(step)[0])!r}" if kind == h5l.TYPE_EXTERNAL else ""
            raise _outside(name, f"is a link to the other file{other}", path)
        num_soft_links += 1
        if num_soft_links > _MAX_SOFT_LINKS:
            what = f"the links of {os.fsdecode(name)!r} go round in a circle"
            raise SourceError(what, where=path, fix="write the file again")
        target = here.links.get_val(step)
        here = root if target.startswith(b"/") else here
        steps += target.split(b"/")[::-1]
    return here


def _outside(name: bytes, what: str, path: str) -> SourceError:
    return SourceError(
        f"{os.fsdecode(name)!r} {what}: only data inside the file are read",
        where=path,
        fix="copy the data into the file",
    )
