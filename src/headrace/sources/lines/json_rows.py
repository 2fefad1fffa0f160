"""Decodes the fields of JSON objects that are wanted, and finds those that nobody knew of."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from headrace.errors import SourceError

from ..shared.lines import BAD_JSON, not_an_object


class RowDecoder:
    """Decodes some fields of an object, and skips the others.

    Args:
        fields: Their names, each once.
        known: Names of all fields that an object may have; `None`: any.
        tag_field: The one of the names that is no data.

    Attributes:
        fields: The names, in this order.
    """

    def __init__(
        self, fields: tuple[str, ...], known: frozenset[str] | None = None, tag_field: str | None = None
    ) -> None:
        self.fields, self._known, self._tag_field = fields, known, tag_field
        self._decoder = self._strict = msgspec.json.Decoder(self._row_of(fields))
        if known is not None:  # that no line has another field is seen by msgspec itself; which one it is, line by line
            names = (*fields, *sorted(known.difference(fields)))
            self._strict = msgspec.json.Decoder(self._row_of(names, forbid_unknown_fields=True))
        self._attributes = [f"f{i}" for i in range(len(fields))]

    def _row_of(self, names: tuple[str, ...], **options: Any) -> type[msgspec.Struct]:
        attributes = [f"f{i}" for i in range(len(names))]
        types = [Any if name in self.fields else msgspec.Raw for name in names]
        return msgspec.defstruct(
            "Row",
            [(one, kind, msgspec.UNSET) for one, kind in zip(attributes, types, strict=True)],
            rename=dict(zip(attributes, names, strict=True)),
            **options,
        )

    def decode(self, line: bytes, where: str) -> tuple[Any, ...]:
        """Return the values, in the order of the names.

        Raises:
            SourceError: The line is no JSON object, or a field is missing or null, or there is one that is not known
                and would become data.
        """
        try:
            values = msgspec.structs.astuple(self._decoder.decode(line))
        except BAD_JSON as error:
            raise not_an_object(f"the line is not a JSON object: {error}", where) from error
        for name, value in zip(self.fields, values, strict=True):
            if value is None or value is msgspec.UNSET:
                there = ", ".join(msgspec.json.decode(line))
                raise SourceError(
                    f"the field {name!r} is {'null' if value is None else 'missing'}",
                    where=where,
                    fix=f"fill it in, or leave the field out: fields=; this line has {there or 'no fields'}",
                )
        if self._known is not None:
            self._refuse_unknown(line, where)
        return values

    def _refuse_unknown(self, line: bytes, where: str) -> None:
        assert self._known is not None
        for name, value in msgspec.json.decode(line).items():
            if name not in self._known and has_array_form(value):
                chosen = json.dumps({one: one for one in self.fields if one != self._tag_field}, ensure_ascii=False)
                raise SourceError(
                    f"the field {name!r} is here, and not in the first line, by which the fields are chosen: it would "
                    "be left out",
                    where=where,
                    fix=f"fill it in in all lines, or say that it is not wanted: fields={chosen}",
                )

    def decode_lines(self, data: bytes, num_lines: int) -> list[list[Any]] | None:
        """Return the values of whole lines, field by field: a list for each.

        `None` if the number of objects differs, or one of them is wrong: `decode` says which.
        """
        try:
            rows = self._strict.decode_lines(data)
        except BAD_JSON:
            return None
        columns = [[getattr(row, name) for row in rows] for name in self._attributes]
        is_whole = len(rows) == num_lines and not any(
            value is None or value is msgspec.UNSET for column in columns for value in column
        )
        return columns if is_whole else None

    def __reduce__(self) -> tuple[Any, ...]:
        return RowDecoder, (self.fields, self._known, self._tag_field)


def has_array_form(value: Any) -> bool:
    """Tell whether a value becomes an array without a vocabulary: a number, a text, or lists of numbers."""
    while isinstance(value, list) and value:
        if isinstance(value[0], str):
            return False
        value = value[0]
    return isinstance(value, bool | int | float | str | list)
