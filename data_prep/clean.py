"""How documents are cleaned and chosen: the settings; `scrub.py` does it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class CleanConfig:
    """Cleaning and choosing of documents."""

    normalisation: Literal["nfc", "nfkc", "none"] = "nfc"
    """Unicode form of the text: nfc unites equal-looking letters, nfkc also folds widths and ligatures, none keeps what is there."""
    min_characters: int = 0
    """Shorter documents are dropped."""
    exact_duplicates: Literal["drop", "keep"] = "drop"
    """Of documents that are equal after cleaning the first in corpus order stays."""
    near_duplicates: float | None = None
    """Similarity (shared five-word runs, 0 to 1) above which of two documents the later one is dropped, by MinHash; None looks for none.
    Found by probability: a steep curve around the value, not an exact line."""
    validation_share: float = 0.005
    """Documents held out for validation, chosen by their hash: the same ones whatever else the corpus holds."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_characters <= 10**9:
            raise ValueError(f"min_characters: {self.min_characters} was given, it must be from 0 to 10^9")
        if self.near_duplicates is not None and self.exact_duplicates == "keep":
            raise ValueError(f"near_duplicates: {self.near_duplicates} was given, it needs exact_duplicates drop")
        if self.near_duplicates is not None and not 0.3 <= self.near_duplicates <= 1:
            raise ValueError(f"near_duplicates: {self.near_duplicates} was given, it must be from 0.3 to 1, or null to look for none")
        if not 0 <= self.validation_share < 1:
            raise ValueError(f"validation_share: {self.validation_share} was given, it must be at least 0 and less than 1")
