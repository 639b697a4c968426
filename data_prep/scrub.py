"""What happens to a document's text before it is tokenised. Every drop has a reason, and reasons are counted."""

import re
import unicodedata
from typing import Literal

import numba
import numpy as np
from numpy.typing import NDArray

from remask.data_prep.clean import CleanConfig

_CONTROLS = bytes(byte for byte in [*range(32), 127] if byte not in b"\t\n\r")
_WIDE_CONTROLS = re.compile(rb"\xc2[\x80-\x9f]")
TOO_SHORT = "too-short"


def clean(text: str, config: CleanConfig) -> tuple[bytes, str]:
    """The cleaned text as UTF-8 and an empty reason, or no text and the reason to drop the document."""
    if config.normalisation != "none" and not text.isascii():
        form: Literal["NFC", "NFKC"] = "NFKC" if config.normalisation == "nfkc" else "NFC"
        if not unicodedata.is_normalized(form, text):
            text = unicodedata.normalize(form, text)
    try:
        data = text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can write and UTF-8 cannot
        return b"", "invalid-utf8"
    if _has_controls(np.frombuffer(data, dtype=np.uint8)):
        data = data.translate(None, _CONTROLS)
    if b"\xc2" in data:
        data = _WIDE_CONTROLS.sub(b"", data)
    data = data.strip()
    if not data:
        return b"", "empty"
    if config.min_characters and len(data.decode()) < config.min_characters:
        return b"", TOO_SHORT
    return data, ""


@numba.njit(cache=True)
def _has_controls(data):  # type: ignore[no-untyped-def]
    """Whether a control character other than tab and line ends is in it; to ask is ten times as fast as to remove none."""
    found = False
    for b in data:
        found |= ((b < 32) & (b != 9) & (b != 10) & (b != 13)) | (b == 127)
    return found


def is_held_out(document_hashes: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """Which documents are for validation, by the upper half of their 64-bit hashes."""
    return (document_hashes >> np.uint64(32)) < share * 2.0**32
