"""What is masked, and how often the masks change."""

from dataclasses import dataclass
from typing import Literal

Strategy = Literal["token", "whole-word", "ngram", "span", "phrase", "similar"]


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """Masks are a function of (seed, refresh, row): nothing of them is stored with the data."""

    strategy: Strategy = "token"
    """What is masked together: single tokens, whole words, ALBERT's n-grams, SpanBERT's spans, ERNIE's phrases, MacBERT's similar words."""
    rate: float = 0.15
    """Share of a row's maskable tokens that become targets."""
    mask_share: float = 0.8
    """Share of the targets replaced by the mask token."""
    random_share: float = 0.1
    """Share of the targets replaced by a random ordinary token; what is left of 1 stays as it was."""
    max_words: int = 1
    """Longest run of words masked together by ngram, span and similar."""
    refresh: Literal["never", "copies", "epoch"] = "epoch"
    """never: one mask a row for ever; copies: `copies` masks in turn, as BERT's duplicated data; epoch: new masks each epoch."""
    copies: int = 10
    """With refresh copies: how many epochs pass before a mask comes back."""

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError(f"rate: {self.rate} was given, it must be more than 0 and less than 1")
        for name in ("mask_share", "random_share"):
            if not 0 <= (share := getattr(self, name)) <= 1:
                raise ValueError(f"{name}: {share} was given, it must be from 0 to 1")
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(f"random_share: {self.random_share} was given, with mask_share ({self.mask_share}) it must be at most 1")
        for name in ("max_words", "copies"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: {value} was given, it must be at least 1")
