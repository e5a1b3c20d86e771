"""Whether stored numbers are finite, told by their bits."""

from __future__ import annotations

from typing import Final

import numpy as np

from services.common.checkpoint.digest import Buffer
from services.common.checkpoint.dtype import DType

_NO_NUMBER: Final = {  # bytes of an element, and the bits that are all set in a NaN or an infinity and in nothing else
    DType.FP32: (4, 0x7F80_0000),
    DType.BF16: (2, 0x7F80),
    DType.FP16: (2, 0x7C00),
    DType.FP8_E5M2: (1, 0x7C),
    DType.FP8_E4M3: (1, 0x7F),
}


def first_not_finite(content: Buffer, dtype: DType) -> int | None:
    """The index of the first element of `content` that is NaN or infinite; None if there is none.

    Those bits lie next to the sign. So what has them is the greatest of all as a signed word, or, if negative, as an
    unsigned one: two maxima tell, without a copy.
    """
    if dtype not in _NO_NUMBER:
        return None
    nbytes, bits = _NO_NUMBER[dtype]
    signed, unsigned = (np.frombuffer(content, f"<{kind}{nbytes}") for kind in "iu")
    sign = 1 << (8 * nbytes - 1)
    if signed.max(initial=0) < bits and unsigned.max(initial=0) < sign | bits:
        return None
    return int(np.argmax(unsigned & bits == bits))
