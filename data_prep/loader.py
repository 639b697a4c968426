"""What a training run reads: how rows are packed, drawn and batched."""

from dataclasses import dataclass, field
from typing import Literal

from remask.data_prep.pack import PackConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Rows and batches. The content of a batch does not depend on how many devices read it."""

    pack: PackConfig = field(default_factory=PackConfig)
    sentence_task: Literal["none", "nsp", "sop"] = "none"
    """Second loss on row pairs: nsp (BERT: does B follow A?), sop (ALBERT: in which order?), or none."""
    batch_rows: int = 256
    """Rows of one optimizer step over all devices; gradient accumulation reaches it from any micro-batch."""
    lanes: int = 3072
    """Stretches that an epoch is cut into; the number of devices must divide it. A constant of the run."""

    def __post_init__(self) -> None:
        for name in ("batch_rows", "lanes"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: {value} was given, it must be at least 1")
