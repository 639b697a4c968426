"""What a training run reads: how rows are packed, drawn and batched."""

from dataclasses import dataclass
from typing import Literal

Packing = Literal["full-sentences", "doc-sentences", "segment-pair", "sentence-pair"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Rows and batches. The content of a batch does not depend on how many devices read it."""

    packing: Packing = "full-sentences"
    """full-sentences: rows are filled across documents; doc-sentences: never across; segment-pair, sentence-pair: two parts a row."""
    sequence_length: int = 512
    """Longest row in tokens, special tokens included; attention time grows with its square."""
    short_probability: float = 0.0
    """Share of the rows cut to a random shorter length, so that the model also sees short inputs."""
    sentence_task: Literal["none", "nsp", "sop"] = "none"
    """Second loss on row pairs: nsp (BERT: does B follow A?), sop (ALBERT: in which order?), or none."""
    batch_rows: int = 256
    """Rows of one optimizer step over all devices; gradient accumulation reaches it from any micro-batch."""
    lanes: int = 3072
    """Stretches that an epoch is cut into; the number of devices must divide it. A constant of the run."""

    def __post_init__(self) -> None:
        if self.sequence_length < 8:
            raise ValueError(f"sequence_length: {self.sequence_length} was given, it must be at least 8")
        if not 0 <= self.short_probability <= 1:
            raise ValueError(f"short_probability: {self.short_probability} was given, it must be from 0 to 1")
        for name in ("batch_rows", "lanes"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: {value} was given, it must be at least 1")
