"""Random recipes of datasets: each class of the room has one entry here, and may stand inside of any other.

A recipe is a config, as users write it. `RECIPES` says for each class how one is drawn, which options change what it
delivers, and which do not.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.datasets import CachedDataset2, Dataset, DatasetSeq, FromListDataset, open_part
from headrace.sources import HDFWriter

NUM_SEQS = 6
ORDERINGS = ("default", "reverse", "random", "laplace:2", "sorted")


def contents(first, num_seqs=NUM_SEQS):
    return [{"data": np.full((1 + (first + i) % 4, 2), first + i, np.float32)} for i in range(num_seqs)]


def add_noise(features, rng):
    return {**features, "data": features["data"] + rng.random(features["data"].shape, dtype=np.float32)}


def negate(features):
    return {**features, "data": -features["data"]}


def change_seq(seq, *, rng, **_):
    return {**seq, "data": seq["data"] + np.float32(rng.rand())}


def drop_every_third(seqs, *, rng, **_):
    for number, seq in enumerate(seqs):
        if number % 3 != 2:
            yield {**seq, "data": seq["data"] * np.float32(1 + rng.rand())}


class FromFiles:
    """A function of the user's: the dataset that some files make."""

    def __init__(self, ordering="random", noise=False):
        self.ordering, self.noise = ordering, noise

    def __call__(self, files):
        data = [seq for file in files for seq in contents(json.loads(Path(file).read_text()), 3)]
        config = {"class": "StaticDataset", "data": data, "seq_ordering": self.ordering}
        return {**config, "transform": add_noise} if self.noise else config


class Indexed(Dataset):
    """A class of the user's own with random access, written by the documented methods."""

    def __init__(self, first=0, flip=False, **kwargs):
        super().__init__(**kwargs)
        self.num_inputs, self.num_outputs = 2, {"data": (2, 2)}
        self.first, self.flip = first, flip
        self._order = []

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        if seq_list is not None:
            seq_order = [self.get_all_tags().index(tag) for tag in seq_list]
        order = self.get_seq_order_for_epoch(epoch, NUM_SEQS, self._length) if seq_order is None else seq_order
        self._order = list(order)[::-1] if self.flip and seq_order is None else list(order)
        return True

    def _length(self, corpus_idx):
        return 1 + (self.first + corpus_idx) % 4

    def get_current_seq_order(self):
        return self._order

    @property
    def num_seqs(self):
        return len(self._order)

    def load_seqs(self, start, end):
        pass

    def get_data_keys(self):
        return ["data"]

    def get_total_num_seqs(self, *, fast=False):
        return NUM_SEQS

    def get_all_tags(self):
        return [f"i-{self.first + i}" for i in range(NUM_SEQS)]

    def get_tag(self, seq_idx):
        return f"i-{self.first + self._order[seq_idx]}"

    def get_seq_length(self, seq_idx):
        return {"data": self._length(self._order[seq_idx])}

    def get_data(self, seq_idx, key):
        corpus_idx = self._order[seq_idx]
        return np.full((self._length(corpus_idx), 2), self.first + corpus_idx, np.float32)


class Alternating(Dataset):
    """A class of the user's own that is made of others: a sequence of the first, one of the second, and so on."""

    def __init__(self, first, second, swap=False, **kwargs):
        super().__init__(**kwargs)
        self.parts = [open_part(part, owner=self) for part in (first, second)]
        self.num_inputs, self.num_outputs = 2, {"data": (2, 2)}
        self.first_size, self.swap = self.parts[0].get_total_num_seqs(), swap
        self._order, self._places = [], []

    def get_parts(self):
        return self.parts

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        if seq_list is not None:
            seq_order = [self.get_all_tags().index(tag) for tag in seq_list]
        self._order = self._order_of(epoch) if seq_order is None else list(seq_order)
        self._places, shares = [], ([], [])
        for corpus_idx in self._order:
            number = int(corpus_idx >= self.first_size)
            self._places.append((self.parts[number], len(shares[number])))
            shares[number].append(corpus_idx - number * self.first_size)
        for part, share in zip(self.parts, shares, strict=True):
            part.init_seq_order(epoch, seq_order=share)
        return True

    def _order_of(self, epoch):
        if epoch is None:
            return []
        for part in self.parts:
            part.init_seq_order(epoch)
        orders = [list(part.get_current_seq_order()) for part in self.parts]
        orders[1] = [self.first_size + corpus_idx for corpus_idx in orders[1]]
        pairs = zip(*(orders[::-1] if self.swap else orders), strict=False)
        return [corpus_idx for pair in pairs for corpus_idx in pair]

    def get_current_seq_order(self):
        return self._order

    @property
    def num_seqs(self):
        return len(self._order)

    def get_all_tags(self):
        return [tag for part in self.parts for tag in part.get_all_tags()]

    def get_total_num_seqs(self, *, fast=False):
        return sum(part.get_total_num_seqs(fast=fast) for part in self.parts)

    def get_tag(self, seq_idx):
        part, own_idx = self._places[seq_idx]
        return part.get_tag(own_idx)

    def get_seq_length(self, seq_idx):
        part, own_idx = self._places[seq_idx]
        return part.get_seq_length(own_idx)

    def load_seqs(self, start, end):
        for part, own_idx in self._places[start:end]:
            part.load_seqs(own_idx, own_idx + 1)

    def get_data(self, seq_idx, key):
        part, own_idx = self._places[seq_idx]
        return part.get_data(own_idx, key)


class Streamed(CachedDataset2):
    """A class of the user's own that reads on and on: an iterator is its position."""

    def __init__(self, first=0, step=1, **kwargs):
        super().__init__(**kwargs)
        self.num_inputs, self.num_outputs = 2, {"data": (2, 2)}
        self.first, self.step = first, step
        self._seqs = iter(())

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        numbers = list(range(0, 0 if epoch is None else NUM_SEQS, self.step))
        random.Random(epoch).shuffle(numbers)
        self._seqs = iter([(number, contents(self.first + number, 1)[0]) for number in numbers])
        return True

    def _collect_single_seq(self, seq_idx):
        number, features = next(self._seqs, (0, None))
        return None if features is None else DatasetSeq(seq_idx, features, seq_tag=f"s-{self.first + number}")


@dataclass(frozen=True)
class Entry:
    """How configs of a class are drawn.

    Attributes:
        make: Called with `Draw`; returns the config.
        is_indexed: Whether any sequence can be asked for; `None`: if all inside can.
        is_leaf: Whether nothing is inside.
        changes: Option -> other values, which may change what is delivered.
        idle: Option -> other values, which must not.
    """

    make: Callable[["Draw"], dict[str, Any]]
    is_indexed: bool | None = True
    is_leaf: bool = False
    changes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    idle: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


class Draw:
    """Draws configs.

    Args:
        rng: Draws.
        folder: Where files may be written.
        depth: How many levels may follow.
        indexed: Whether all must have random access.
    """

    def __init__(self, rng, folder, depth, *, indexed=False):
        self.rng, self.folder, self.depth, self.indexed = rng, folder, depth, indexed

    def config(self, name=None):
        """Return a config of a class, or of any."""
        if name is None:
            names = [
                name
                for name, entry in RECIPES.items()
                if (entry.is_leaf or self.depth > 0) and (entry.is_indexed is not False or not self.indexed)
            ]
            name = self.rng.choice(names)
        return RECIPES[name].make(self)

    def inner(self, *, indexed=False, leaf=False):
        """Return a config of what is inside."""
        below = Draw(self.rng, self.folder, 0 if leaf else self.depth - 1, indexed=indexed or self.indexed)
        return below.config()

    def order(self):
        options = {"seq_ordering": self.rng.choice(ORDERINGS)}
        return options | self.some({"partition_epoch": 2, "fixed_random_seed": 5, "random_seed_offset": 3})

    def some(self, options):
        return {name: value for name, value in options.items() if self.rng.random() < 0.25}

    def first(self):
        return self.rng.randrange(5) * 100

    def path(self, text, suffix=".txt"):
        path = Path(self.folder, f"{self.rng.getrandbits(64):x}{suffix}")
        path.write_text(text)
        return str(path)


def _static(draw):
    noise = draw.some({"transform": add_noise})
    return {"class": "StaticDataset", "data": contents(draw.first()), **draw.order(), **noise}


def _hdf(draw):
    path, first = f"{draw.folder}/{draw.rng.getrandbits(64):x}.hdf", draw.first()
    with HDFWriter(path) as writer:
        for number, seq in enumerate(contents(first)):
            writer.append(f"h-{first + number}", seq)
    return {
        "class": "HDFDataset",
        "files": [path],
        "index": None,
        **draw.order(),
        **draw.some({"transform": add_noise}),
    }


def _map(draw):
    data = FromListDataset(contents(draw.first()), sort_data_key="data", data_types={"data": {"shape": (None, 2)}})
    return {"class": "MapDataset", "map_dataset": data, **draw.order()}


def _source(draw):
    return {**_hdf(draw), "class": "SourceDataset"}


def _files(draw):
    files = [draw.path(str(draw.first() + 3 * n), ".json") for n in range(3)]
    return {
        "class": "DistributeFilesDataset",
        "files": files,
        "get_sub_epoch_dataset": FromFiles(draw.rng.choice(ORDERINGS), draw.rng.random() < 0.3),
        "executor": "inline",
        "num_workers": 0,
        "partition_epoch": draw.rng.randint(1, 3),
        "seq_ordering": draw.rng.choice(["default", "random"]),
    }


def _parts(draw, **kind):
    return [draw.inner(**kind) for _ in range(draw.rng.randint(1, 3))]


def _concat(draw):
    return {"class": "ConcatDataset", "datasets": _parts(draw, indexed=True), **draw.order()}


def _name_of(config):
    name = config.get("class", "")
    return name if isinstance(name, str) else name.__name__


def _combined(draw):
    parts, order = dict(zip("abc", _parts(draw, indexed=True), strict=False)), draw.order()
    return {"class": "CombinedDataset", "datasets": parts, "data_map": {(n, "data"): "data" for n in parts}, **order}


def _alternating(draw):
    first, second = (draw.inner(leaf=True, indexed=True) for _ in range(2))
    return {"class": Alternating, "first": first, "second": second}


def _mix(draw):
    parts = dict(zip("abc", _parts(draw, leaf=True, indexed=True), strict=False))
    return {
        "class": "MixDataset",
        "datasets": parts,
        "weights": {name: draw.rng.randint(1, 4) for name in parts},
        "mixing": draw.rng.choice(["even", "shuffled"]),
        "seqs_per_epoch": draw.rng.randint(3, 15),
    }


def _meta(draw):
    first, order = draw.first(), draw.order()
    parts = {n: {"class": "StaticDataset", "data": contents(first + 10 * i)} for i, n in enumerate("xy")}
    parts["x"] |= draw.some({"transform": add_noise})
    parts["y"] |= draw.some({"transform": negate})
    if draw.depth > 1:
        parts["y"] = {"class": "PostprocessingDataset", "dataset": parts["y"], "map_seq": change_seq}
    return {
        "class": "MetaDataset",
        "datasets": {"x": {**parts["x"], **order}, "y": parts["y"]},
        "data_map": {"data": (draw.rng.choice("xy"), "data")},
        "seq_order_control_dataset": "x",
    }


def _multi_epoch(draw):
    return {"class": "MultiEpochDataset", "dataset": draw.inner(), "multi_epoch": draw.rng.randint(1, 3)}


def _postprocessing(draw):
    seeds = draw.some({"random_seed_offset": 4, "map_outputs": {"data": {"dim": 2}}})
    function = {"map_seq": change_seq}
    if not draw.indexed and draw.rng.random() < 0.4:
        function = {"map_seq_stream": drop_every_third}
    return {"class": "PostprocessingDataset", "dataset": draw.inner(), **function, **seeds}


def _concat_seqs(draw):
    inner = {"class": "StaticDataset", "data": contents(draw.first()), **draw.some({"transform": add_noise})}
    if draw.rng.random() < 0.4:
        inner = {"class": "ConcatDataset", "datasets": [inner]}
    lines = draw.path("seq-0;seq-1\nseq-2\nseq-3;seq-4;seq-0\n")
    return {"class": "ConcatSeqsDataset", "dataset": inner, "seq_list_file": lines, **draw.order()}


def _multi_proc(draw):
    return {
        "class": "MultiProcDataset",
        "dataset": draw.inner(indexed=True),
        "num_workers": 0,
        "buffer_size": draw.rng.randint(1, 5),
    }


_ORDER = {"seq_ordering": ORDERINGS, "partition_epoch": (1, 3), "fixed_random_seed": (1,), "random_seed_offset": (1,)}
_CACHED = {**_ORDER, "repeat_epoch": (2,), "transform": (negate, None), "window": (1, 5)}
_NAMED = {"name": ("another",)}

RECIPES: dict[str, Entry] = {
    "StaticDataset": Entry(_static, is_leaf=True, changes=_CACHED, idle={**_NAMED, "cache_byte_size": (0, 100)}),
    "HDFDataset": Entry(_hdf, is_leaf=True, changes=_CACHED, idle={**_NAMED, "cache_byte_size": (0, 100)}),
    "MapDataset": Entry(_map, is_leaf=True, changes=_CACHED, idle=_NAMED),
    "SourceDataset": Entry(_source, is_leaf=True, changes=_CACHED, idle=_NAMED),
    "Indexed": Entry(
        lambda draw: {"class": Indexed, "first": draw.first(), **draw.order()},
        is_leaf=True,
        changes={"flip": (True,), **_ORDER},
        idle=_NAMED,
    ),
    "Streamed": Entry(
        lambda draw: {"class": Streamed, "first": draw.first()},
        is_indexed=False,
        is_leaf=True,
        changes={"step": (2, 3), "first": (7,)},
        idle=_NAMED,
    ),
    "Alternating": Entry(_alternating, changes={"swap": (True,)}, idle=_NAMED),
    "DistributeFilesDataset": Entry(
        _files,
        is_indexed=False,
        is_leaf=True,
        changes={
            "partition_epoch": (1, 2, 3),
            "seq_ordering": ("default", "random"),
            "get_sub_epoch_dataset": (FromFiles("reverse"), FromFiles("random", noise=True), FromFiles("default")),
        },
        idle={"buffer_size": (1, 7), "preload_next_n_sub_epochs": (0, 1), **_NAMED},
    ),
    "ConcatDataset": Entry(_concat, changes={"seq_ordering": ORDERINGS, "partition_epoch": (1, 2)}, idle=_NAMED),
    "CombinedDataset": Entry(_combined, changes={"seq_ordering": ("default", "reversed")}, idle=_NAMED),
    "MixDataset": Entry(
        _mix, changes={"mixing": ("even", "shuffled"), "seqs_per_epoch": (2, 9), "fixed_random_seed": (3,)}, idle=_NAMED
    ),
    "MetaDataset": Entry(_meta, changes={"seq_order_control_dataset": ("y",)}, idle=_NAMED),
    "MultiEpochDataset": Entry(_multi_epoch, is_indexed=False, changes={"multi_epoch": (1, 2, 4)}, idle=_NAMED),
    "PostprocessingDataset": Entry(
        _postprocessing,
        None,
        changes={"random_seed_offset": (0, 9), "fixed_random_seed": (1,)},
        idle={"buf_size": (9,)},
    ),
    "ConcatSeqsDataset": Entry(
        _concat_seqs,
        changes={
            "repeat_in_between_last_frame_up_to_multiple_of": ({"data": 3},),
            **_ORDER,
        },
        idle=_NAMED,
    ),
    "MultiProcDataset": Entry(_multi_proc, idle={"buffer_size": (1, 9), "num_workers": (0,)}),
}


def nodes(config):
    """Return the configs in a config, itself first."""
    found = []
    if isinstance(config, Mapping):
        if "class" in config:
            found.append(config)
        for value in config.values():
            found += nodes(value)
    elif isinstance(config, list | tuple):
        for value in config:
            found += nodes(value)
    return found


def entry_of(config):
    return RECIPES[_name_of(config)]


_PART_OPTIONS = ("dataset", "datasets", "first", "second")


def with_objects(config, make, made):
    """Return a config in which each dataset that may be an object is one, made by `make`.

    Objects of equal configs are the same one, and are put into `made`; without it, each is another one.
    """
    if isinstance(config, Mapping):
        if _name_of(config) == "MultiProcDataset":
            return dict(config)  # it takes a config
        parts = {name: with_objects(value, make, made) for name, value in config.items()}
        return {
            name: _as_object(value, make, made) if name in _PART_OPTIONS and not isinstance(value, int) else value
            for name, value in parts.items()
        }
    if isinstance(config, list):
        return [with_objects(value, make, made) for value in config]
    return config


def _as_object(value, make, made):
    if isinstance(value, Mapping) and "class" in value:
        key = repr(sorted((str(name), str(option)) for name, option in value.items()))
        if made is None:
            return make(value)
        if key not in made:
            made[key] = make(value)
        return made[key]
    if isinstance(value, Mapping):
        return {name: _as_object(part, make, made) for name, part in value.items()}
    return [_as_object(part, make, made) for part in value]
