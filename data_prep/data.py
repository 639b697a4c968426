"""What a training run reads: the settings; `loader.py` does it."""

from dataclasses import dataclass, field
from typing import Literal

from remask.data_prep.pack import PackConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Rows and batches. The content of a batch does not depend on how many devices read it."""

    sets: tuple[str, ...] = ()
    """Folders that remask prep has made."""
    short_sets: tuple[str, ...] = ()
    """Folders of the same corpus packed at schedule.short_length, for a first phase of short rows."""
    weights: tuple[float, ...] = ()
    """How often rows of each set come, in proportion; empty: one set, or all alike. Each set has epochs of its own."""
    pack: PackConfig = field(default_factory=PackConfig)
    sentence_task: Literal["none", "nsp", "sop"] = "none"
    """Second loss on row pairs: nsp (BERT: does B follow A?), sop (ALBERT: in which order?), or none."""
    documents_apart: bool = False
    """Keep tokens from attending to other documents of their row (full-sentences); RoBERTa lets them. Shorter spans, so also faster."""
    batch_rows: int = 256
    """Rows of one optimizer step over all devices; gradient accumulation reaches it from any micro-batch."""
    lanes: int = 3072
    """Stretches that an epoch is cut into; the number of devices must divide it. A constant of the run."""
    window_blocks: int = 8
    """Blocks whose rows are shuffled together: more spread neighbours further, and keep more of the files in memory."""
    damaged: Literal["stop", "skip-and-report"] = "stop"
    """What to do about a shard that is missing or not as it was written: stop and name it, or leave its rows out and tell."""

    def __post_init__(self) -> None:
        for name in ("batch_rows", "lanes", "window_blocks"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: {value} was given, it must be at least 1")
        if self.documents_apart and self.pack.mode != "full-sentences":
            raise ValueError(f"documents_apart: true was given, but rows of pack.mode {self.pack.mode} hold one document; leave it out")
        if self.weights and len(self.weights) != max(len(self.sets), 1):
            raise ValueError(f"weights: {len(self.weights)} were given for {len(self.sets)} sets; give one for each, or none")
        if any(weight <= 0 for weight in self.weights):
            raise ValueError(f"weights: {list(self.weights)} was given, each must be more than 0")
