"""What is marked in the text beside its sentences: Chinese words and names, and the phrases and entities of the user's lists."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MarkConfig:
    """Marks that a corpus may ask for; without any, words follow from the vocabulary and no phrases are stored."""

    chinese_words: bool = False
    """Cut Chinese text into words with rjieba; else each ideograph is a word."""
    chinese_entities: bool = False
    """Mark the people, places and organisations that rjieba tags."""
    words: tuple[str, ...] = ()
    """Added to rjieba's dictionary."""
    phrases: tuple[str, ...] = ()
    """Marked wherever they stand, as phrases."""
    entities: tuple[str, ...] = ()
    """Marked wherever they stand, as entities."""

    def __post_init__(self) -> None:
        if (self.chinese_entities or self.words) and not self.chinese_words:
            raise ValueError("chinese_words: False was given, but words or names to find in Chinese need it on")

    @property
    def has_phrases(self) -> bool:
        """Whether blocks have the channel `phrases`."""
        return bool(self.phrases or self.entities or self.chinese_entities)
