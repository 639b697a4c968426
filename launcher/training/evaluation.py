"""What the model can do so far: loss on held-out rows with fixed masks, and words that it puts into fixed sentences."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remask.data_prep.batch import Batch
from remask.data_prep.blocks import Blocks
from remask.data_prep.data import DataConfig
from remask.data_prep.errors import InputError
from remask.data_prep.loader import fixed_batches, make_masker, row_maker
from remask.data_prep.masking import MaskingConfig
from remask.data_prep.tokenizer import Vocabulary
from remask.launcher.training.peers import Peers
from remask.launcher.training.step_batch import arguments_of
from remask.model.smoothness import Movement, measure_movements

if TYPE_CHECKING:
    from torch import Tensor

    from remask.launcher.training.engine import Engine

log = logging.getLogger(__name__)

_GUESSES = 5


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Of one moment of a run."""

    losses: dict[str, float]
    """Mean over the held-out rows, by part that they have something of."""
    rows: int

    @property
    def perplexity(self) -> float:
        """Of the masked tokens: among how many words the model is still choosing, on average."""
        return math.exp(min(self.losses.get("masked_tokens", math.nan), 700.0))


class HeldOut:
    """A rank's part of the held-out rows, spread evenly over them if there are more than asked for, masked once and for all."""

    def __init__(self, data: DataConfig, masking: MaskingConfig, rows: int, peers: Peers) -> None:
        self._peers = peers
        self._batches: list[Batch] = []
        try:
            blocks = Blocks(Path(data.sets[0]), split="validation")
        except InputError:
            log.warning("%s: no rows are held out in it, so there is no evaluation; remask prep holds out some by default", data.sets[0])
            return
        place = peers.place
        maker, masker = row_maker(blocks, data, masking), make_masker(blocks, masking)
        self._batches = list(fixed_batches(blocks, maker, masker, data.batch_rows, place.rank, place.world_size, most_rows=rows))

    def evaluate(self, engine: "Engine", most_tokens: int) -> Evaluation | None:
        """Called by every rank; None where nothing is held out."""
        pieces = [piece for batch in self._batches for piece in batch.micro_batches(most_tokens=most_tokens)]
        most = int(max(numbers[0] for numbers in self._peers.gather([len(pieces)])))
        if most == 0:
            return None
        empty = self._batches[0].rows(0, 0)
        sums: dict[str, tuple[float, int]] = {}
        with engine.evaluating():
            for number in range(most):
                piece = pieces[number] if number < len(pieces) else empty
                for name, part in engine.losses(arguments_of(piece)).items():
                    total, counted = sums.get(name, (0.0, 0))
                    sums[name] = (total + float(part.sum), counted + part.counted)
        names = sorted(sums)
        everyone = self._peers.gather([sum(map(len, pieces)), *(value for name in names for value in sums[name])])
        totals = [sum(column) for column in zip(*everyone, strict=True)]
        losses = {name: totals[1 + 2 * i] / totals[2 + 2 * i] for i, name in enumerate(names) if totals[2 + 2 * i]}
        return Evaluation(losses=losses, rows=int(totals[0]))

    def movements(self, engine: "Engine", most_tokens: int) -> list[Movement]:
        """How far each layer moves its input, on the first held-out rows; called by every rank, of use on rank 0."""
        if not self._batches:
            return []
        piece = next(self._batches[0].micro_batches(most_tokens=most_tokens), self._batches[0])
        arguments = {name: values.to(engine.device) for name, values in arguments_of(piece).items()}
        with engine.evaluating():
            return measure_movements(engine.model.encoder, arguments["ids"], arguments["offsets"], arguments["segments"])


def fill_masks(engine: "Engine", vocabulary: Vocabulary, sentences: Sequence[str]) -> dict[str, list[tuple[str, float]]]:
    """For each sentence the likeliest words with their probabilities; called by every rank."""
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(vocabulary.text)
    specials = vocabulary.specials
    mask = specials["mask"]
    filled: dict[str, list[tuple[str, float]]] = {}
    with engine.evaluating():
        for sentence in sentences:
            inner = tokenizer.encode(sentence.replace("[MASK]", vocabulary.pieces[mask]), add_special_tokens=False).ids
            ids = torch.tensor([specials["cls"], *inner, specials["sep"]])[: engine.config.model.positions]
            positions = torch.nonzero(ids == mask).flatten()[:1]
            if len(positions):
                offsets = torch.tensor([0, len(ids)], dtype=torch.int32)
                scores = engine.score({"ids": ids, "offsets": offsets, "positions": positions})
                filled[sentence] = _guess(scores, tokenizer, vocabulary.pieces)
    return filled


def _guess(scores: "Tensor", tokenizer: object, pieces: Sequence[str]) -> list[tuple[str, float]]:
    probabilities, ids = scores[0, : len(pieces)].softmax(-1).topk(_GUESSES)
    words = [tokenizer.decode([token], skip_special_tokens=False).strip() or pieces[token] for token in ids.tolist()]  # type: ignore[attr-defined]
    return list(zip(words, probabilities.tolist(), strict=True))
