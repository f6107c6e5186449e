"""Read IDX, the format of MNIST and Fashion-MNIST, plain or compressed with gzip."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from hvdtrain.errors import UserError

# Third byte of the file: type of the values, most significant byte first (http://yann.lecun.com/exdb/mnist, as archived).
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> np.ndarray:
    """The array in the IDX file at `path`, in the machine's byte order; whether it is compressed is seen from its first bytes.

    Raises:
        UserError: no such file, another format, or fewer values than its head says.
    """
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise UserError(f"{path} is not an IDX file: it begins with {data[:4]!r}")
    dimensions = data[3]
    head = 4 + 4 * dimensions
    shape = tuple(
        int(n) for n in np.frombuffer(data[:head], ">u4", offset=4, count=min(dimensions, len(data) // 4 - 1))
    )
    kind = np.dtype(_TYPES[data[2]])
    expected = head + math.prod(shape) * kind.itemsize
    if len(shape) < dimensions or len(data) != expected:
        raise UserError(f"{path} holds {len(data):,} bytes; its head says {expected:,}: it is truncated or damaged")
    return np.frombuffer(data, kind, offset=head).reshape(shape).astype(kind.newbyteorder("="))
