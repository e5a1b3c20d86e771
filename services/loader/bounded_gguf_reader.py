"""The gguf package's reader, for files that may be damaged: it ends in one of a few errors, and soon."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from gguf import GGUFReader, GGUFValueType

NONSENSE: Final = (  # what reading a damaged file ends in
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    RecursionError,
)
_MAX_ITEMS: Final = 1 << 24  # of one array, or of tensors: many times what any vocabulary or model has


class BoundedGgufReader(GGUFReader):
    """Reads no further than the file goes, and no endless lists: a damaged length would have it count to 2^63."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        end = int(offset) + int(count) * np.dtype(dtype).itemsize
        if not 0 <= int(offset) <= end <= len(self.data):
            raise ValueError(f"something ends at byte {end} of {len(self.data)}")
        # views of a plain array, one for each token, take half of what those of a memmap take
        self.data = np.asarray(self.data)  # type: ignore[assignment]
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == GGUFValueType.ARRAY:
            _check_count(self._get(orig_offs + 4, np.uint64)[0])
        return super()._get_field_parts(orig_offs, raw_type)

    def _build_tensor_info(self, offs: int, count: int) -> Any:
        _check_count(count)
        return super()._build_tensor_info(offs, count)


def _check_count(count: int) -> None:
    if count > _MAX_ITEMS:
        raise ValueError(f"a list of {count} items; the most is {_MAX_ITEMS}")
