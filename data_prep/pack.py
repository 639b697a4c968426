"""How sentences become rows: the settings; `cuts.py` does it."""

from dataclasses import dataclass
from typing import Literal

Packing = Literal["full-sentences", "doc-sentences", "segment-pair", "sentence-pair"]

_SPECIAL_TOKENS: dict[Packing, int] = {"full-sentences": 2, "doc-sentences": 2, "segment-pair": 3, "sentence-pair": 3}


@dataclass(frozen=True, kw_only=True)
class PackConfig:
    """How sentences become rows."""

    mode: Packing = "full-sentences"
    """full-sentences: filled across documents, with a separator; doc-sentences: never across; the pair modes: two parts a row."""
    sequence_length: int = 512
    """Longest row in tokens with the special tokens that the loader adds."""
    short_probability: float = 0.0
    """Share of the rows that stop at a random shorter length, so that the model also sees short inputs."""
    seed: int = 1
    """Of those lengths, and of the place where a segment pair splits."""

    def __post_init__(self) -> None:
        if not 8 <= self.sequence_length <= 65536:
            raise ValueError(f"sequence_length: {self.sequence_length} was given, it must be from 8 to 65536")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: {self.seed} was given, it must be from 0 to 2^63 - 1")
        if not 0 <= self.short_probability <= 1:
            raise ValueError(f"short_probability: {self.short_probability} was given, it must be from 0 to 1")

    @property
    def row_budget(self) -> int:
        """Text tokens that fit into a row: two special tokens around one part, three around two."""
        return self.sequence_length - _SPECIAL_TOKENS[self.mode]
