"""What is masked, and how often the masks change: the settings; `masks.py` does it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Strategy = Literal["token", "whole-word", "ngram", "span", "phrase", "similar"]

# Strategy -> how likely 1, 2, … words are drawn together, by how many there may be. ALBERT: p(n) ∝ 1/n. SpanBERT: geometric with 0.2,
# cut at the longest and renormalised. MacBERT: 40, 30, 20 and 10%.
_WORDS_TOGETHER = {
    "ngram": lambda longest: [1 / n for n in range(1, longest + 1)],
    "span": lambda longest: [0.2 * 0.8 ** (n - 1) for n in range(1, longest + 1)],
    "similar": lambda longest: [0.4, 0.3, 0.2, 0.1][:longest],
}
_LONGEST = {"ngram": 3, "span": 10, "similar": 4}


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """Masks are a function of (seed, refresh, row): nothing of them is stored with the data."""

    strategy: Strategy = "token"
    """What is masked together: single tokens, whole words, ALBERT's n-grams, SpanBERT's spans, ERNIE's phrases, MacBERT's similar words."""
    rate: float = 0.15
    """Share of a row's maskable tokens that become targets, rounded to the nearest number, at least one."""
    final_rate: float | None = None
    """The rate at the end of training, reached in a straight line from `rate`; None keeps it."""
    mask_share: float = 0.8
    """Share of the targets replaced by the mask token; with similar, by a similar word."""
    random_share: float = 0.1
    """Share of the targets replaced by a random ordinary token; what is left of 1 stays as it was."""
    max_words: int | None = None
    """Longest run of words that ngram, span and similar mask together; None is the paper's: 3, 10 and 4."""
    levels: tuple[Literal["phrase", "entity"], ...] = ("phrase", "entity")
    """With phrase: which spans of the shards are masked as one; all other words are masked one by one."""
    similar_words: str | None = None
    """With similar: a table made by remask prep similar; None replaces every word at random."""
    refresh: Literal["never", "copies", "epoch"] = "epoch"
    """never: one mask a row for ever; copies: `copies` masks in turn, as BERT's duplicated data; epoch: new masks each epoch."""
    copies: int = 10
    """With refresh copies: how many epochs pass before a mask comes back."""

    def __post_init__(self) -> None:
        for name in ("rate", "final_rate"):
            if (rate := getattr(self, name)) is not None and not 0 < rate < 1:
                raise ValueError(f"{name}: {rate} was given, it must be more than 0 and less than 1")
        for name in ("mask_share", "random_share"):
            if not 0 <= (share := getattr(self, name)) <= 1:
                raise ValueError(f"{name}: {share} was given, it must be from 0 to 1")
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(f"random_share: {self.random_share} was given, with mask_share ({self.mask_share}) it must be at most 1")
        if self.copies < 1:
            raise ValueError(f"copies: {self.copies} was given, it must be at least 1")
        if self.max_words is not None:
            longest = 4 if self.strategy == "similar" else 255
            if not 1 <= self.max_words <= longest:
                raise ValueError(f"max_words: {self.max_words} was given, it must be from 1 to {longest}")

    @property
    def words_together(self) -> tuple[float, ...]:
        """How likely a run of 1, 2, … words is drawn; empty for strategies that draw units one by one."""
        if self.strategy not in _WORDS_TOGETHER:
            return ()
        weights = _WORDS_TOGETHER[self.strategy](self.max_words or _LONGEST[self.strategy])
        return tuple(weight / sum(weights) for weight in weights)

    def refresh_of(self, epoch: int) -> int:
        """Epochs with the same value have the same masks."""
        return {"never": 0, "copies": epoch % self.copies, "epoch": epoch}[self.refresh]

    def rate_at(self, progress: "NDArray[np.float64]") -> "NDArray[np.float64]":
        """The rate after these shares of the training."""
        change = 0.0 if self.final_rate is None else self.final_rate - self.rate
        return self.rate + change * progress.clip(0.0, 1.0)
