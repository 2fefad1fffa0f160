"""The layout of the data keys of a dataset of files: learnt from the first entry of the list or first sub-epoch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError, did_you_mean
from headrace.specs import DataSpec

from ..cached2 import CachedDataset2
from .files import opened_in_place
from .layout import KeyLayout, SubEpochLayout
from .options import StreamOptions
from .share import FileShare
from .sub_dataset import cached_files_of, cannot_share, read_in_place


class LaidOutByFiles(CachedDataset2):
    """Answers about data keys by a layout that may have to be learnt first, or by the first sequence."""

    _share: FileShare
    _stream_options: StreamOptions
    _layout: SubEpochLayout | None = None
    _is_undeclared = False  # whether the sub-dataset says nothing of its layout: sequences show it
    _options_inside: Sequence[str] = ()  # those of the sub-dataset that count for the batches of the epoch API only

    @abstractmethod
    def _take_first_block(self) -> None:
        """Read the first sequences of the current epoch, if there is one and nothing of it was read."""

    def initialize(self) -> None:
        """Get ready to read: learn the layout from the first entry of the file list, read in place. Starts no process.

        Where its files can only be read from the cache, nothing is fetched: the layout is learnt with the first
        sub-epoch, whose files are needed anyway; or, if somebody asks before, from the first entry.
        """
        if self._layout is None:
            self._learn_layout(may_fetch=False)
        super().initialize()

    def _set_layout(self, layout: SubEpochLayout | None) -> None:
        self._layout = layout
        self._is_undeclared = layout is None

    def _learn_layout(self, *, may_fetch: bool) -> None:
        """Open the first entry of the file list in this process, to see what its sequences are like."""
        spec = self._share.spec_of_entry(0)
        if cached_files_of(read_in_place(spec.dataset)) and not may_fetch:
            return
        with opened_in_place(spec.dataset, self._stream_options.cache) as dataset:
            num_workers = self._stream_options.num_workers
            if num_workers > 1 and not dataset.supports_jumps:
                raise cannot_share(dataset, num_workers, f"dataset {self.name!r}")
            self._options_inside = dataset.batch_options()
            self._set_layout(SubEpochLayout.of(dataset, f"entry 0 of the file list, {spec.files}"))

    def _known_layout(self) -> SubEpochLayout | None:
        """Return the layout, learnt now if need be; `None` if only sequences show it."""
        if self._layout is None and not self._is_undeclared:
            self._take_first_block()
            if self._layout is None and not self._is_undeclared:
                self._learn_layout(may_fetch=True)
        return self._layout

    def _known_specs(self) -> dict[str, DataSpec]:
        """Return what is known by now of the arrays, by data key; joined frames are others than those of the files."""
        specs = {} if self._layout is None else self._layout.specs
        return {key: spec for key, spec in specs.items() if key != "data" or self.window == 1}

    @property
    def num_inputs(self) -> int:  # type: ignore[override] # an attribute elsewhere; here it may have to be learnt
        """Size of a frame of "data"; 0 if there is no such key."""
        layout = self._known_layout()
        return 0 if layout is None else layout.num_inputs

    @property
    def num_outputs(self) -> dict[str, tuple[int, int]] | None:  # type: ignore[override]
        """Data key -> (dim, ndim), as the sub-dataset says."""
        layout = self._known_layout()
        return None if layout is None else dict(layout.num_outputs)

    @property
    def labels(self) -> dict[str, Sequence[str]]:
        """Data key -> names of the classes, as the first entry of the file list says."""
        layout = self._known_layout()
        return {} if layout is None else dict(layout.labels)

    @labels.setter
    def labels(self, value: dict[str, Sequence[str]]) -> None:
        if value:
            raise ConfigError(f"the labels of a {type(self).__name__} are those of its files")

    def _key_layout(self, key: str) -> KeyLayout | None:
        layout = self._known_layout()
        if layout is None:
            return None
        if key not in layout.keys:
            raise ConfigError(
                f"no data key {key!r}", where=f"dataset {self.name!r}", fix=did_you_mean(key, layout.keys)
            )
        return layout.keys[key]

    def get_data_keys(self) -> list[str]:
        """Return the data keys."""
        layout = self._known_layout()
        return super().get_data_keys() if layout is None else list(layout.keys)

    def get_data_dim(self, key: str) -> int:
        """Return the size of the last axis, or the number of classes of a sparse key."""
        known = self._key_layout(key)
        if known is None:
            return super().get_data_dim(key)
        return known.dim * self.window if key == "data" else known.dim

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name."""
        known = self._key_layout(key)
        return super().get_data_dtype(key) if known is None else known.dtype

    def is_data_sparse(self, key: str) -> bool:
        """Whether the key holds class indices."""
        known = self._key_layout(key)
        return super().is_data_sparse(key) if known is None else known.sparse

    def get_data_shape(self, key: str) -> list[int | None]:
        """Return the shape of one frame."""
        known = self._key_layout(key)
        if known is None:
            return super().get_data_shape(key)
        shape = list(known.shape)
        if key == "data" and shape and shape[-1] is not None:
            shape[-1] *= self.window
        return shape

    def batch_options(self) -> list[str]:
        """Return those of the dataset that the layout was learnt from as well."""
        return [*super().batch_options(), *self._options_inside]

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "layout": (self._layout, self._is_undeclared, self._options_inside)}

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        self._layout, self._is_undeclared, self._options_inside = state["layout"]
