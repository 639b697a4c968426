"""The installed packages, and which of them will do the work."""

import sys
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from remask.data_prep.engines import choose_engine
from remask.launcher.checks import Check
from remask.model.kernels.choose import choose_kernels, foreign_apex, look_around

_SHOWN = ("torch", "deepspeed", "transformers", "webdataset", "numpy", "numba")

# Plain words, contractions, numbers, accents, capitals with a dot, CJK, a joined emoji, odd spaces: where engines differ if they do.
_SAMPLE = [
    "The quick brown fox jumps over the lazy dog; it didn't stop at 3.14 or 1,000.",
    "Füße, naïve café, İstanbul, ﬁn, and “quotes” — with dashes…",
    "你好，世界。今天天气很好！",
    "party \U0001f389 family \U0001f469‍\U0001f469‍\U0001f467 done",
    "  two  spaces,\ttab\nand a line  ",
    "def f(x): return x**2  # code_with_underscores",
]


def check_python() -> Check:
    return Check(name="python", status="ok", found=f"{sys.version.split()[0]} in {sys.prefix}")


def check_packages() -> Check:
    wrong = []
    for requirement in map(Requirement, requires("remask") or []):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            wrong.append(f"{requirement} is missing")
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            wrong.append(f"{requirement} is wanted, {installed} is installed")
    if wrong:
        remedy = "pip install 'torch==2.13.0' first, then pip install -e . in the clone again (or make clean demo)"
        return Check(name="packages", status="fail", found="; ".join(wrong), remedy=remedy)
    return Check(name="packages", status="ok", found=", ".join(f"{name} {version(name)}" for name in _SHOWN))


def check_kernels() -> Check:
    choices = choose_kernels(look_around())
    found = "; ".join(f"{name}: {choice.rung} ({choice.reason})" for name, choice in choices.items())
    if foreign := foreign_apex():
        remedy = f"the package apex in {foreign} is not NVIDIA's and is ignored; pip uninstall apex"
        return Check(name="kernels", status="warn", found=found, remedy=remedy)
    return Check(name="kernels", status="ok", found=found)


def check_tokenizer_engines() -> Check:
    engines = {kind: choose_engine(text, kind, [sample.encode() for sample in _SAMPLE]) for kind, text in _sample_tokenizers().items()}
    found = "; ".join(f"{kind}: {engine}" for kind, engine in engines.items())
    slow = [kind for kind, engine in engines.items() if engine.package == "tokenizers" and kind != "Unigram"]
    if slow:
        return Check(
            name="tokenizers", status="warn", found=found, remedy="pip install gigatoken==0.10.0 tokie==0.1.4: up to 80 times faster"
        )
    return Check(name="tokenizers", status="ok", found=found)


def _sample_tokenizers() -> dict[str, str]:
    """A small tokenizer.json of each kind, trained on the sample itself."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = byte_level
    bpe.train_from_iterator(_SAMPLE, trainers.BpeTrainer(vocab_size=320, initial_alphabet=byte_level.alphabet(), show_progress=False))
    word_piece = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    word_piece.normalizer = normalizers.BertNormalizer()
    word_piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    word_piece.train_from_iterator(_SAMPLE, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False))
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.train_from_iterator(
        _SAMPLE, trainers.UnigramTrainer(vocab_size=120, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    )
    return {"BPE": bpe.to_str(), "WordPiece": word_piece.to_str(), "Unigram": unigram.to_str()}
