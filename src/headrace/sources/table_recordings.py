"""Recordings in a column of a table: their bytes, or paths to them, decoded to samples or features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import resolve_inside
from headrace.specs import DataSpec

from .audio_file import read_header, read_samples, resample, resampled_length
from .audio_gather import AudioOptions
from .audio_scan import Layout
from .log_mel import LogMel
from .table_columns import Cells
from .table_fields import Rows, TableField, text_of
from .table_layout import Column


class RecordingField(TableField):
    """Audio in a structure of its bytes and its path, as Hugging Face stores it: `float32[T, 1]`, or features.

    Args:
        data_key: The data key.
        column: The column.
        options: `features`, `sample_rate` and `channel`, as `AudioSource` takes them.
        root: Folder that paths are relative to, where a row has no bytes; None: such rows are refused.
    """

    parts = ("bytes", "path")

    def __init__(self, data_key: str, column: Column, options: Mapping[str, Any], root: str | None) -> None:
        super().__init__(data_key, column)
        features, sample_rate = options.get("features", "raw"), options.get("sample_rate") or column.sample_rate
        # There is no manifest; what its layout says is not looked at.
        no_manifest = Layout("", "", "", None, "")
        self._options = AudioOptions.parse(no_manifest, features, None, sample_rate, options.get("channel"))
        own = None if self._options.features is None else self._options.features["sample_rate"]
        self._root = root
        self._rate: int | None = sample_rate or own
        self._may_resample = self._rate is not None
        self._log_mel: LogMel | None = None
        if self._rate is not None:
            self._log_mel = self._options.front_end(self._rate)
        self._has_axis = True

    @property
    def identity(self) -> list[Any]:
        """The column and the options."""
        options = self._options
        return ["recording", self.column.name, options.features, options.sample_rate, options.channel, self._root]

    @property
    def facts(self) -> Any:
        """The rate of the samples."""
        return self._rate

    @property
    def gives_samples(self) -> bool:
        """Whether it gives samples, and no features."""
        return self._options.features is None

    def scan(self, cells: Sequence[Cells], rows: Rows, where: str) -> NDArray[np.int64]:
        """Read the headers of all recordings."""
        lengths = []
        for row in range(cells[0].num_rows) if rows is None else rows.tolist():
            place = f"{where}, row {row}"
            num_samples, rate = read_header(self._recording(cells, row, place), place)
            if self._rate is None:
                self._rate, self._log_mel = rate, self._options.front_end(rate)
            self._check_rate(rate, place)
            num_samples = resampled_length(num_samples, rate, self._rate)
            lengths.append(num_samples if self._log_mel is None else self._log_mel.num_frames(num_samples))
        return np.array(lengths, np.int64)

    def _check_rate(self, rate: int, where: str) -> None:
        if rate != self._rate and not self._may_resample:
            raise SourceError(
                f"the recordings of the column {self.column.name!r} have different sample rates: {self._rate} and "
                f"{rate} Hz",
                where=where,
                fix=f'give fields={{"{self.data_key}": {{"field": "{self.column.name}", "sample_rate": ...}}}}',
            )

    def end_scan(self) -> DataSpec:
        """Return the layout of samples or features."""
        size = 1 if self._options.features is None else self._options.features["num_mels"]
        return DataSpec("float32", (size,), dim=size)

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, facts: Any) -> None:  # noqa: ARG002
        """Take the sample rate."""
        self._rate = facts
        self._log_mel = None if facts is None else self._options.front_end(facts)

    def declare(self, spec: DataSpec) -> None:
        """Take `float32[T]` or `float32[T, 1]` for samples."""
        self._has_axis = bool(spec.shape)

    def view(self, cells: Sequence[Cells], row: int, where: str) -> NDArray[Any]:
        """Decode one recording, `float32[T, D]`."""
        place = f"{where}, row {row}"
        samples, rate = read_samples(self._recording(cells, row, place), self._options.channel, place)
        self._check_rate(rate, place)
        samples = resample(samples, rate, self._rate or rate)
        if self._log_mel is not None:
            return self._log_mel(samples)
        return samples[:, None] if self._has_axis else samples

    def _recording(self, cells: Sequence[Cells], row: int, where: str) -> bytes | str:
        """Return the bytes of a recording, or where they are."""
        data, path = cells
        if not _is_null(data, row):
            return data.view(row).tobytes()
        if _is_null(path, row):
            raise SourceError(f"the column {self.column.name!r} is null", where=where, fix="correct or filter the rows")
        name = text_of(path, row, self.column.name, where)
        if self._root is None:
            raise SourceError(
                f"the column {self.column.name!r} has no bytes, only the path {name!r}",
                where=where,
                fix="give audio_root=, the folder that the paths are in; or store the bytes in the table",
            )
        return str(resolve_inside(self._root, name))


def _is_null(cells: Cells, row: int) -> bool:
    return any(mask[row] for mask, _ in cells.wrong)
