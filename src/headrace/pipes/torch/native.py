"""Replaces torch's pipes by equivalent ones of Headrace: several times faster, and with positions that can be saved.

Torch's pipes can only be resumed by reading everything again. The replacements give the same items in the same order,
except that a shuffle draws from another generator: the same seed gives another, equally reproducible order. Only pipes
of exactly the classes below are replaced; subclasses and user-defined pipes stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.walk import list_pipes
from ..graph.edit import replace
from ..ops.batch import Batcher, UnBatcher
from ..ops.branches.fork import demux, fork
from ..ops.branches.join import Concater, Multiplexer, Zipper
from ..ops.files.listing import FileLister
from ..ops.files.local import FileOpener
from ..ops.files.parse import StreamReader
from ..ops.map import Filter, Mapper
from ..ops.sharding_filter import ShardingFilter
from ..ops.shuffle import Shuffler
from ..ops.sources import IterableWrapper, SequenceWrapper
from ..sharding import SHARDING_PRIORITIES


def to_native(pipe: Any) -> Any:
    """Replace torch's pipes in a graph by equivalent ones of Headrace.

    Args:
        pipe: The end of the graph, which is changed in place. It must not be iterated over at the moment.

    Returns:
        The end of the graph.

    Raises:
        ConfigError: The graph has a cycle.

    Examples:
        >>> from headrace.pipes import to_native
        >>> def convert(torch_pipe):  # where torch is installed: pipes of torch become those of Headrace
        ...     return to_native(torch_pipe)
    """
    for each in list_pipes(pipe):
        cls = type(each)
        if not cls.__module__.startswith("torch.utils.data.datapipes."):
            continue
        if convert := _CONVERSIONS.get(cls.__name__):
            pipe = replace(pipe, each, convert(each))
        elif divide := _DIVISIONS.get(cls.__name__):
            readers = divide(each)
            for child in [other for other in list_pipes(pipe) if getattr(other, "main_datapipe", None) is each]:
                pipe = replace(pipe, child, readers[child.instance_id])
    return pipe


def _file_lister(old: Any) -> FileLister:
    return FileLister(
        old.datapipe,
        old.masks,
        recursive=old.recursive,
        abspath=old.abspath,
        non_deterministic=old.non_deterministic,
        length=old.length,
    )


def _shuffler(old: Any) -> Shuffler:
    of_torch = vars(old)  # which has no public name for these two
    new = Shuffler(old.datapipe, buffer_size=old.buffer_size).set_shuffle(of_torch["_enabled"])
    return new if of_torch["_seed"] is None else new.set_seed(of_torch["_seed"])


def _sharding_filter(old: Any) -> ShardingFilter:
    new = ShardingFilter(old.source_datapipe, old.sharding_group_filter)
    for group, (num_of_instances, instance_id) in old.groups.items():
        new.apply_sharding(num_of_instances, instance_id, SHARDING_PRIORITIES(int(group)))
    return new


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "BatcherIterDataPipe": lambda old: Batcher(old.datapipe, old.batch_size, old.drop_last, old.wrapper_class),
    "CollatorIterDataPipe": lambda old: Mapper(old.datapipe, old.fn),
    "ConcaterIterDataPipe": lambda old: Concater(*old.datapipes),
    "FileListerIterDataPipe": _file_lister,
    "FileOpenerIterDataPipe": lambda old: FileOpener(old.datapipe, old.mode, old.encoding, old.length),
    "FilterIterDataPipe": lambda old: Filter(old.datapipe, old.filter_fn, old.input_col),
    "IterableWrapperIterDataPipe": lambda old: IterableWrapper(old.iterable, old.deepcopy),
    "MapperIterDataPipe": lambda old: Mapper(old.datapipe, old.fn, old.input_col, old.output_col),
    "MultiplexerIterDataPipe": lambda old: Multiplexer(*old.datapipes),
    "SequenceWrapperMapDataPipe": lambda old: SequenceWrapper(old.sequence, deepcopy=False),
    "ShardingFilterIterDataPipe": _sharding_filter,
    "ShufflerIterDataPipe": _shuffler,
    "StreamReaderIterDataPipe": lambda old: StreamReader(old.datapipe, old.chunk),
    "UnBatcherIterDataPipe": lambda old: UnBatcher(old.datapipe, old.unbatch_level),
    "ZipperIterDataPipe": lambda old: Zipper(*old.datapipes),
}
_COPIES = {"copy": "shallow", "deepcopy": "deep"}
_DIVISIONS: dict[str, Callable[[Any], Any]] = {
    "_ForkerIterDataPipe": lambda old: fork(
        old.main_datapipe, old.num_instances, old.buffer_size, _COPIES.get(old.copy_fn.__name__)
    ),
    "_DemultiplexerIterDataPipe": lambda old: demux(
        old.main_datapipe, old.num_instances, old.classifier_fn, old.drop_none, old.buffer_size
    ),
}
