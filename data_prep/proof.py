"""Which engine a run trusts: the fastest that encodes a sample of its own corpus as Hugging Face's tokenizers do."""

import logging
from collections.abc import Iterator
from itertools import islice

from remask.data_prep import item
from remask.data_prep.engines import choose_engine, load_engine
from remask.data_prep.errors import InputError
from remask.data_prep.job import Job
from remask.data_prep.marks import MarkConfig
from remask.data_prep.phrases import sequences_of
from remask.data_prep.tokenizer import Vocabulary

log = logging.getLogger(__name__)

# Documents that an engine is proven on: a share of the corpus within these bounds, each cut to so many characters, from so many items.
# Hugging Face's tokenizers, the reference, take half a second for a MB.
_PROOF_SHARE, _LEAST_PROOF, _MOST_PROOF, _PROOF_CHARACTERS, _PROOF_ITEMS = 0.002, 100, 2000, 1000, 32


def proven_engine(vocabulary: Vocabulary, jobs: list[Job]) -> str:
    """The fastest engine that encodes a sample of this very corpus as Hugging Face's tokenizers do."""
    counts = item.Counts()
    corpus_bytes = sum(piece.stored_bytes for job in jobs for piece in job.pieces)
    wanted = max(_LEAST_PROOF, min(_MOST_PROOF, int(corpus_bytes * _PROOF_SHARE) // _PROOF_CHARACTERS))
    sampled = dict.fromkeys(data.decode()[:_PROOF_CHARACTERS].encode() for data in islice(_sampled(jobs, wanted, counts), wanted))
    texts = list(sampled)
    if not texts:
        reasons = "; ".join(f"{reason}, first at {places[0]}" for reason, places in counts.examples.items())
        raise InputError(f"no document of the corpus can be used: {reasons or 'its files hold none'}")
    engine = choose_engine(vocabulary.text, vocabulary.kind, texts)
    log.info("tokenizer engine: %s", engine)
    return engine.package


def _sampled(jobs: list[Job], wanted: int, counts: item.Counts) -> Iterator[bytes]:
    """Documents of items that are spread over the corpus, a few of each; then of all, for those may hold no good one.

    A file that cannot be read is passed over: the item that it belongs to will tell.
    """
    chosen = jobs[:: -(-len(jobs) // _PROOF_ITEMS)]
    for job, most in [*((job, -(-wanted // len(chosen))) for job in chosen), *((job, wanted) for job in jobs)]:
        try:
            for _, data in islice(item.cleaned_documents(job.pieces, job.clean, counts), most):
                yield data
        except (InputError, OSError) as error:
            counts.examples.setdefault(f"cannot be read ({error})", [job.pieces[0].file])


def tell_unknown(marks: MarkConfig, vocabulary: Vocabulary, engine: str) -> None:
    """Name the list entries that the vocabulary cannot write: they are nowhere to be found."""
    loaded = load_engine(engine, vocabulary.text)
    for option, entries in (("--phrase-list", marks.phrases), ("--entity-list", marks.entities)):
        tokens = sequences_of(entries, loaded)[::2]  # without the space
        lost = [entry for entry, ids in zip(entries, tokens, strict=True) if vocabulary.specials["unk"] in ids]
        if lost:
            log.warning("%s: %d of %d entries cannot be written in this vocabulary, such as %s", option, len(lost), len(entries), lost[0])
