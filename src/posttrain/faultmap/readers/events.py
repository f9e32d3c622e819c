"""TensorBoard event files: TFRecord frames with protocol buffers inside, of which only scalars are read.

Layouts are those of tensorflow's ``event.proto``, ``summary.proto`` and ``tensor.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

import numpy as np

from posttrain.errors import InputError
from posttrain.faultmap.history import Facts
from posttrain.faultmap.readers.remarks import Remarks
from posttrain.faultmap.readers.source import MIB, Source, unreadable
from posttrain.faultmap.readers.structured import Parsed
from posttrain.faultmap.readers.table import TableBuilder
from posttrain.faultmap.readers.trl_arguments import facts_from_text

_FRAME = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_LARGEST_RECORD = 64 * MIB
_CHECKED_WHOLE = 8 * MIB
"""Files up to this size have every checksum verified; of larger ones each 64th, to be quick."""
_CHECKED_RECORD = 64 * 1024
_DTYPES = {1: np.dtype("<f4"), 2: np.dtype("<f8"), 3: np.dtype("<i4"), 9: np.dtype("<i8")}
_ARGUMENTS = "args/text_summary"


def is_event_file(head: bytes) -> bool:
    """True if a file begins with a valid TFRecord frame."""
    return len(head) >= _FRAME.size and _masked(head[:8]) == _FRAME.unpack_from(head)[1]


def read_events(sources: Sequence[Source], remarks: Remarks) -> Parsed:
    """The scalars of the event files of one run, in the order given. Raises InputError where there is none."""
    builder = TableBuilder()
    facts = Facts()
    for source in sources:
        row: dict[str, float] = {}
        for step, tag, value in _scalars(source, remarks):
            if isinstance(value, bytes):
                facts = facts_from_text(value)
                continue
            if row and (row["step"] != step or tag in row):
                builder.add(row)
                row = {}
            row["step"] = step
            row[tag] = value
            if builder.is_full:
                break
        if row:
            builder.add(row)
    table = builder.build()
    if not table.rows:
        raise unreadable(sources[0].path, "holds no scalars", "Give the event files of a training run.")
    return Parsed(table, "TensorBoard events", facts=facts)


def _scalars(source: Source, remarks: Remarks) -> Iterator[tuple[int, str, float | bytes]]:
    with source.open() as file:
        for record in _records(source, file, remarks):
            try:
                yield from _event(record)
            except (ValueError, IndexError, struct.error, UnicodeDecodeError):
                remarks.problem(f"{source.path.name}: a record is damaged; it was left out.")


def _records(source: Source, file: BinaryIO, remarks: Remarks) -> Iterator[bytes]:
    number, total = 0, 0
    while total <= (source.limits.unpacked if source.packed else source.limits.stream):
        try:
            head = file.read(_FRAME.size)
            if not head:
                return
            number += 1
            length, check = _FRAME.unpack(head)
            if length > _LARGEST_RECORD or _masked_length(head[:8]) != check:
                remarks.problem(f"{source.path.name}: record {number} is damaged; reading stopped there.")
                return
            body = file.read(length + 4)
        except (OSError, EOFError, struct.error, InputError):
            body, length = b"", 0
        if len(body) < length + 4:
            remarks.problem(f"{source.path.name}: the last record is cut off.")
            return
        total += len(body)
        record = body[:-4]
        wanted = source.size <= _CHECKED_WHOLE or number % 64 == 0
        if wanted and length <= _CHECKED_RECORD and _masked(record) != _CHECKSUM.unpack(body[-4:])[0]:
            remarks.problem(f"{source.path.name}: records with a wrong checksum were left out.")
            continue
        yield record


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    kind: int
    value: int
    content: bytes


def _fields(data: bytes) -> Iterator[_Field]:
    """Fields of a message. Raises ValueError or IndexError on one that is cut off."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        value, size = 0, 0
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("a field of a kind that is not in use")
        if at + size > end:
            raise ValueError("a field is longer than its message")
        yield _Field(key >> 3, kind, value, data[at : at + size])
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _event(record: bytes) -> Iterator[tuple[int, str, float | bytes]]:
    """Step, tag and value of each scalar of an event; TRL's arguments as the bytes of their text."""
    step, summary = 0, b""
    for field in _fields(record):
        if field.number == 2 and field.kind == 0:
            step = field.value
        elif field.number == 5 and field.kind == 2:
            summary = field.content
    if step >= 2**63:
        return
    for value in _fields(summary):
        if value.number == 1 and value.kind == 2:
            found = _value(value.content)
            if found is not None:
                yield step, *found


def _value(content: bytes) -> tuple[str, float | bytes] | None:
    tag = ""
    number: float | bytes | None = None
    for field in _fields(content):
        if field.number == 1 and field.kind == 2:
            tag = field.content.decode("utf-8")
        elif field.number == 2 and field.kind == 5:
            number = _FLOAT.unpack(field.content)[0]
        elif field.number == 8 and field.kind == 2:
            number = _text(field.content) if tag == _ARGUMENTS else _tensor(field.content)
    return (tag, number) if tag and number is not None else None


def _tensor(content: bytes) -> float | None:
    """The number in a tensor of one element."""
    kind, raw = 0, b""
    for field in _fields(content):
        if field.number == 1:
            kind = field.value
        elif field.number in (4, 5, 6) and field.kind in (1, 2, 5):
            raw = field.content
    dtype = _DTYPES.get(kind)
    return float(np.frombuffer(raw, dtype)[0]) if dtype is not None and len(raw) == dtype.itemsize else None


def _text(content: bytes) -> bytes | None:
    return next((field.content for field in _fields(content) if field.number == 8 and field.kind == 2), None)


def _crc_table() -> tuple[int, ...]:
    table: list[int] = []
    for index in range(256):
        for _ in range(8):
            index = index >> 1 ^ (0x82F63B78 if index & 1 else 0)
        table.append(index)
    return tuple(table)


_CRC = _crc_table()


def _masked(data: bytes) -> int:
    """CRC-32C of the bytes, rotated and shifted as TFRecord stores it."""
    table, crc = _CRC, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@lru_cache(maxsize=4096)
def _masked_length(data: bytes) -> int:
    return _masked(data)
