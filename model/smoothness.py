"""How far each layer moves its input: distance and cosine between what goes in and what comes out.

Lan et al. 2019 (figure 1) show that layers which share weights change their input more evenly; a layer that moves its input by
nothing, or ever further, is seen here before it is seen in the loss.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from remask.model.encoder import Encoder
from remask.model.packing import pack


class Movement(NamedTuple):
    """Of one layer, as means over the tokens."""

    distance: float
    """Euclidean, from input to output."""
    cosine: float
    """Between input and output; 1 where the layer keeps the direction."""


@torch.no_grad()
def measure_movements(encoder: Encoder, ids: Tensor, offsets: Tensor, segments: Tensor | None = None) -> list[Movement]:
    """One for each layer in turn, on rows as the encoder takes them, in the mode (training or not) that it is in."""
    packing = pack(offsets).to(ids.device)
    hidden, normed = encoder.embed(ids, packing, segments)
    movements = []
    for layer in range(encoder.config.layers):
        moved, normed = encoder.apply_layer(layer, hidden, normed, packing)
        cosine = functional.cosine_similarity(hidden.float(), moved.float(), dim=-1)
        distance = (moved.float() - hidden.float()).norm(dim=-1).mean().item()
        movements.append(Movement(distance=distance, cosine=cosine.mean().item()))
        hidden = moved
    return movements
