"""Words in Chinese text, which has no spaces: cut by rjieba's dictionary and the user's own words."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

# The blocks of ideographs that BERT's tokenizer sets apart.
_IDEOGRAPHS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2CEAF), (0x2F800, 0x2FA1F))

GoesOn = Callable[[str], NDArray[np.bool_]]
"""For each character of a text: whether it is an ideograph that goes on with the word of the character before it."""


def load_segmenter(words: Sequence[str]) -> GoesOn:
    """rjieba with these words added; loaded once a process, for its dictionary takes half a second."""
    import rjieba

    jieba = rjieba.Jieba()
    for word in words:
        jieba.add_word(word, None, None)

    def goes_on(text: str) -> NDArray[np.bool_]:
        ideographs = is_ideograph(text)
        if not ideographs.any():
            return ideographs
        lengths = np.fromiter(map(len, jieba.cut(text)), dtype=np.int64)
        begins = np.zeros(len(text), dtype=np.bool_)
        begins[np.cumsum(lengths) - lengths] = True
        inside: NDArray[np.bool_] = ideographs & ~begins
        inside[1:] &= ideographs[:-1]
        return inside

    return goes_on


def is_ideograph(text: str) -> NDArray[np.bool_]:
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    found = np.zeros(len(codes), dtype=np.bool_)
    for first, last in _IDEOGRAPHS:
        found |= (codes >= first) & (codes <= last)
    return found
