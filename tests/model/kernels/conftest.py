"""The same tests in Triton's interpreter (marker `kernels`) and on a real GPU (marker `gpu`)."""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

# Without Triton the tests cannot even be read; the gate of their marker cannot tell then.
collect_ignore_glob = [] if importlib.util.find_spec("triton") or os.environ.get("CI") else ["test_*.py"]
if not torch.cuda.is_available() and "triton.language" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"  # where this folder is run alone; once Triton is imported it is too late
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.kernels), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    if (request.param == "cpu") != INTERPRETED:
        pytest.fail("the interpreter needs TRITON_INTERPRET=1 pytest -m kernels, a GPU pytest -m gpu without it", pytrace=False)
    return str(request.param)


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[ModuleType, str, str], ModuleType]:
    """A module of kernels with one thing wrong in it, which a test must notice."""

    def make(module: ModuleType, right: str, wrong: str) -> ModuleType:
        assert module.__file__
        source = Path(module.__file__).read_text()
        assert source.count(right) >= 1, right
        file = tmp_path / "broken.py"
        file.write_text(source.replace(right, wrong))
        spec = importlib.util.spec_from_file_location("broken", file)
        assert spec and spec.loader
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        return made

    return make
