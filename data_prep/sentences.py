"""Where sentences end, by rule, in Latin and CJK text, on the bytes of UTF-8.

A sentence ends after a terminator (. ! ? … and the CJK ones) and the quotes or brackets that close behind it, if what follows looks like
a beginning; and at every blank line. A full stop does not end one after an initial, a title or an abbreviation, nor in a numbered
list's label. The rules are one pass of compiled code, because a regular expression alone costs more than the tokenizer.
"""

import numba
import numpy as np
from numpy.typing import NDArray

# Never the last word of a sentence: a name, a clause or an example follows.
_OPEN_ENDED = (
    "mr mrs ms mx dr prof st mt gen sen rep gov capt cmdr col lt maj sgt rev hon pres messrs mme mlle vs viz e.g i.e cf al approx ca resp"
)
# The last word unless a number follows: "No. 5" but "He said no. Then".
_BEFORE_NUMBER = "no nos fig figs eq eqs sec sect ch chap vol p pp art op par tab jan feb mar apr jun jul aug sep sept oct nov dec"


def _packed(words: str) -> NDArray[np.uint64]:
    """Each word of at most 8 letters as one number, sorted."""
    return np.array(sorted(int.from_bytes(word.encode(), "big") for word in words.split()), dtype=np.uint64)


OPEN_ENDED = _packed(_OPEN_ENDED)
BEFORE_NUMBER = _packed(_BEFORE_NUMBER)
# Bytes at which a sentence can end; all others are passed over by one look-up. 0xE2, 0xE3, 0xEF begin the wide terminators.
_STOPS = np.zeros(256, dtype=np.bool_)
_STOPS[[10, 33, 46, 63, 0xE2, 0xE3, 0xEF]] = True


def sentence_ends(data: bytes) -> NDArray[np.int64]:
    """Byte positions one past each sentence's last byte, rising; the last is the end of the text without the white space behind it."""
    ends: NDArray[np.int64] = _find_ends(np.frombuffer(data, dtype=np.uint8), _STOPS, OPEN_ENDED, BEFORE_NUMBER)
    return ends


@numba.njit(cache=True)
def _find_ends(text, stops, open_ended, before_number):  # type: ignore[no-untyped-def]
    ends = np.empty(16, dtype=np.int64)
    count = last = resume = 0
    size = len(text)
    for i in range(size):
        if not stops[text[i]] or i < resume:
            continue
        end = 0
        if text[i] == 10:
            after = _skip_blanks(text, i + 1)
            if after < size and text[after] == 10:
                end = i
        elif _terminator_width(text, i):
            stop = i
            while stop < size and _terminator_width(text, stop):  # "?!", "...", "。。。"
                stop += _terminator_width(text, stop)
            resume = stop
            while resume < size and _closer_width(text, resume):
                resume += _closer_width(text, resume)
            if _ends_here(text, i, stop, resume, open_ended, before_number):
                end = resume
        if end > last and not _is_space_only(text, last, end):
            if count == len(ends):
                ends = np.concatenate((ends, np.empty(count, dtype=np.int64)))
            ends[count] = end
            count += 1
            last = end
    tail = size
    while tail > last and _is_space(text[tail - 1]):
        tail -= 1
    if tail > last:
        if count == len(ends):
            ends = np.concatenate((ends, np.empty(1, dtype=np.int64)))
        ends[count] = tail
        count += 1
    return ends[:count]


@numba.njit(cache=True)
def _ends_here(text, start, stop, close, open_ended, before_number):  # type: ignore[no-untyped-def]
    """Whether the terminators from `start` to `stop`, closed until `close`, end a sentence."""
    if text[start] >= 0xE3 or (text[start] == 0xE2 and close == len(text)):
        return True  # CJK terminators need no space behind them
    if close == len(text):
        return True
    if not _is_space(text[close]):
        return text[close] >= 0xE3  # "版本 1.0.下一句": Latin stop, CJK beginning
    follow = close
    while follow < len(text) and _is_space(text[follow]):
        follow += 1
    if follow == len(text):
        return True
    first = text[follow]
    if 97 <= first <= 122:
        return False
    if text[start] != 46 or stop - start > 1:
        return True
    return not _is_abbreviation(text, start, first, open_ended, before_number)


@numba.njit(cache=True)
def _is_abbreviation(text, stop, following, open_ended, before_number):  # type: ignore[no-untyped-def]
    """Whether the word that ends at the full stop is short for something that goes on."""
    begin = stop
    while begin > 0 and (_is_letter(text[begin - 1]) or text[begin - 1] == 46):
        begin -= 1
    length = stop - begin
    if length == 0:
        return _is_list_label(text, stop)
    if begin > 0 and 48 <= text[begin - 1] <= 57:
        return False  # "5kg."
    if length == 1 and 65 <= text[begin] <= 90:
        return text[begin] != 73  # an initial; "I" is a word
    if length == 3 and text[begin + 1] == 46 and 65 <= text[begin] <= 90:
        return True  # "U.S.", "J.R."
    if length > 8:
        return False
    packed = np.uint64(0)
    for i in range(begin, stop):
        byte = text[i] | 32 if 65 <= text[i] <= 90 else text[i]
        packed = (packed << np.uint64(8)) | np.uint64(byte)
    if _holds(open_ended, packed):
        return True
    return 48 <= following <= 57 and _holds(before_number, packed)


@numba.njit(cache=True)
def _is_list_label(text, stop):  # type: ignore[no-untyped-def]
    """A number alone at the start of a line: "1. First point"."""
    begin = stop
    while begin > 0 and 48 <= text[begin - 1] <= 57:
        begin -= 1
    if begin == stop or stop - begin > 3:
        return False
    while begin > 0 and text[begin - 1] in (32, 9):
        begin -= 1
    return begin == 0 or text[begin - 1] == 10


@numba.njit(cache=True)
def _terminator_width(text, i):  # type: ignore[no-untyped-def]
    """Bytes of the terminator at `i`, 0 if there is none: . ! ? … 。 ！ ？ ．｡ and the ideographic half-width stop."""
    if text[i] == 46 or text[i] == 33 or text[i] == 63:
        return 1
    if i + 2 >= len(text):
        return 0
    a, b, c = text[i], text[i + 1], text[i + 2]
    if a == 0xE2 and b == 0x80 and c == 0xA6:  # …
        return 3
    if a == 0xE3 and b == 0x80 and c == 0x82:  # 。
        return 3
    if a == 0xEF and ((b == 0xBC and c in (0x81, 0x8E, 0x9F)) or (b == 0xBD and c == 0xA1)):  # ！ ． ？ ｡
        return 3
    return 0


@numba.njit(cache=True)
def _closer_width(text, i):  # type: ignore[no-untyped-def]
    """Bytes of the closing quote or bracket at `i`, 0 if there is none: " ' ) ] } » ’ ” and 」 』 】 》 〉 ）."""
    if text[i] in (34, 39, 41, 93, 125):
        return 1
    if text[i] == 0xC2 and i + 1 < len(text) and text[i + 1] == 0xBB:  # »
        return 2
    if i + 2 >= len(text):
        return 0
    a, b, c = text[i], text[i + 1], text[i + 2]
    if a == 0xE2 and b == 0x80 and c in (0x99, 0x9D):  # ’ ”
        return 3
    if a == 0xE3 and b == 0x80 and c in (0x89, 0x8B, 0x8D, 0x8F, 0x91):  # 〉 》 」 』 】
        return 3
    if a == 0xEF and b == 0xBC and c == 0x89:  # ）
        return 3
    return 0


@numba.njit(cache=True)
def _holds(sorted_words, word):  # type: ignore[no-untyped-def]
    low, high = 0, len(sorted_words)
    while low < high:
        middle = (low + high) // 2
        if sorted_words[middle] < word:
            low = middle + 1
        else:
            high = middle
    return low < len(sorted_words) and sorted_words[low] == word


@numba.njit(cache=True)
def _is_space(byte):  # type: ignore[no-untyped-def]
    return byte == 32 or 9 <= byte <= 13


@numba.njit(cache=True)
def _is_space_only(text, begin, end):  # type: ignore[no-untyped-def]
    while begin < end and _is_space(text[begin]):
        begin += 1
    return begin == end


@numba.njit(cache=True)
def _skip_blanks(text, i):  # type: ignore[no-untyped-def]
    while i < len(text) and (text[i] == 32 or text[i] == 9 or text[i] == 13):
        i += 1
    return i


@numba.njit(cache=True)
def _is_letter(byte):  # type: ignore[no-untyped-def]
    return 65 <= byte <= 90 or 97 <= byte <= 122
