"""The CPU's chunked loss against plain torch's, and the choice of implementations."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from remask.model import chunked_head
from remask.model.chunked_head import chunked_target_loss
from remask.model.kernels import vendors
from remask.model.kernels.choose import LADDERS, Machine, build_operations, choose_kernels, foreign_apex, look_around
from remask.model.operations import add_norm, target_loss
from remask.model.optimizers import Lamb


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("targets", "chunk"), [(50, 1 << 24), (50, 700), (1, 100), (0, 100)])
def test_the_chunked_loss_is_torchs(dtype: torch.dtype, targets: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_head, "_CHUNK_SCORES", chunk)
    torch.manual_seed(1)
    values = [torch.randn(targets, 12), torch.randn(97, 12), torch.randn(97)]
    asked = torch.randint(0, 97, (targets,))
    found, wanted = ([value.to(dtype).requires_grad_() for value in values] for _ in range(2))
    loss, plain = chunked_target_loss(*found, asked, 0.01), target_loss(*wanted, asked, 0.01)
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(loss, plain, **tolerance)  # type: ignore[arg-type]
    (3 * loss).backward()
    (3 * plain).backward()
    for mine, other in zip(found, wanted, strict=True):
        assert mine.grad is not None and other.grad is not None and (targets == 0 or other.grad.abs().max() > 0.1)
        torch.testing.assert_close(mine.grad, other.grad, **tolerance)  # type: ignore[arg-type]


def test_the_chunked_loss_refuses_to_be_gone_back_through_twice() -> None:
    hidden = torch.randn(3, 4, requires_grad=True)
    loss = chunked_target_loss(hidden, torch.randn(9, 4), torch.zeros(9), torch.tensor([1, 2, 8]), 0.0)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="can be gone back through once"):
        loss.backward()


def test_the_chunked_loss_never_holds_all_scores() -> None:
    """The largest tensor of forward and backward pass is a chunk or a gradient, not rows x vocabulary."""
    hidden, words, bias = torch.randn(40_000, 8, requires_grad=True), torch.randn(2000, 8, requires_grad=True), torch.zeros(2000)
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            sizes.extend(
                tensor.untyped_storage().nbytes()
                for tensor in (made if isinstance(made, tuple) else (made,))
                if isinstance(tensor, torch.Tensor)
            )
            return made

    with Watch():
        chunked_target_loss(hidden, words, bias, torch.randint(0, 2000, (40_000,)), 0.0).backward()
    assert 4 * chunked_head._CHUNK_SCORES >= max(sizes) > 10**6
    assert max(sizes) < 40_000 * 2000 * 4 / 4


LAST = {**dict.fromkeys(LADDERS, "torch"), "adamw": "torch-fused", "lamb": "torch-foreach"}
OLD = Machine(device="cuda", architecture=70, packages=("triton", "apex"))
GPU = Machine(device="cuda", architecture=80, packages=("triton", "apex"))


def rungs(machine: Machine, **options: Any) -> dict[str, str]:
    return {name: choice.rung for name, choice in choose_kernels(machine, **options).items()}


def test_the_ladder_is_climbed_from_the_top() -> None:
    assert set(rungs(GPU).values()) == {"triton"}
    vendors = Machine(device="cuda", architecture=80, packages=("transformer-engine", "apex"))
    torchs = {"linear_gelu": "torch", "embed": "torch", "target_loss": "torch"}
    assert rungs(vendors) == {**torchs, "add_norm": "apex", "adamw": "transformer-engine", "lamb": "apex"}
    assert rungs(GPU, pin="vendor") == {**torchs, "add_norm": "apex", "adamw": "apex", "lamb": "apex"}
    for plain in (rungs(GPU, pin="torch"), rungs(Machine(device="cuda", architecture=80, packages=())), rungs(OLD)):
        assert plain == LAST
    assert choose_kernels(OLD)["embed"].reason == "triton: made for sm_80 and newer"
    cpu = Machine(device="cpu", architecture=0, packages=("triton", "apex"))
    assert rungs(cpu) == {**LAST, "target_loss": "cpu"} and rungs(cpu, pin="torch") == LAST
    assert set(rungs(cpu, interpreted=True).values()) == {"triton"}
    assert choose_kernels(cpu)["lamb"].reason == "triton: no GPU; apex: no GPU"
    assert choose_kernels(vendors)["lamb"].reason == "triton: not installed"


@pytest.mark.parametrize(
    ("pin", "machine"),
    [
        ("triton", Machine(device="cpu", architecture=0, packages=("triton",))),
        ("vendor", Machine(device="cuda", architecture=80, packages=())),
    ],
)
def test_a_pin_that_cannot_be_had_is_refused(pin: Any, machine: Machine) -> None:
    with pytest.raises(ValueError, match=f"kernels: {pin} was given, but .*use auto or torch"):
        choose_kernels(machine, pin=pin)


def test_every_rung_of_ours_can_be_loaded() -> None:
    operations = build_operations(choose_kernels(look_around()))
    assert operations.target_loss is chunked_target_loss
    assert choose_kernels(look_around())["lamb"].load() is Lamb


def test_apex_is_looked_at_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's by its files and its compiled part; a foreign one, or NVIDIA's without that part, is not taken."""
    (tmp_path / "apex" / "optimizers").mkdir(parents=True)
    (tmp_path / "apex" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "apex" not in look_around().packages
    (tmp_path / "apex" / "optimizers" / "fused_lamb.py").touch()
    assert "apex" not in look_around().packages
    for name in ("amp_C", "fused_layer_norm_cuda"):
        assert "apex" not in look_around().packages
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported')")
    assert "apex" in look_around().packages and foreign_apex() is None


def test_a_single_file_called_apex_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("apex", "amp_C", "fused_layer_norm_cuda"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "apex" not in look_around().packages and foreign_apex() == tmp_path / "apex.py"


def take_apex_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "apex"]:
        monkeypatch.delitem(sys.modules, name)


def test_apexs_lamb_is_told_to_be_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default it clips on its own and leaves out the trust ratio where nothing is decayed; a shard it cannot take."""
    (tmp_path / "apex" / "optimizers").mkdir(parents=True)
    (tmp_path / "apex" / "__init__.py").touch()
    (tmp_path / "apex" / "optimizers" / "__init__.py").write_text(
        "def FusedLAMB(params, **options): return options\nFusedAdam = FusedLAMB\n"
    )
    take_apex_from(tmp_path, monkeypatch)
    common: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01}
    made: Any = vendors.lamb_by_apex([], **common)
    assert made == {**common, "use_nvlamb": True, "max_grad_norm": float("inf"), "bias_correction": True}
    assert vendors.adamw_by_apex([], **common) == {**common, "adam_w_mode": True, "bias_correction": True}
    with pytest.raises(ValueError, match="pin triton or torch"):
        vendors.lamb_by_apex([], **common, sum_over_ranks=lambda norms: norms)


def test_apexs_norm_is_called_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with Apex's signature, fused_layer_norm_affine(input, weight, bias, normalized_shape, eps)."""
    (tmp_path / "apex" / "normalization").mkdir(parents=True)
    for name in ("apex/__init__.py", "apex/normalization/__init__.py"):
        (tmp_path / name).touch()
    (tmp_path / "apex" / "normalization" / "fused_layer_norm.py").write_text(
        "from torch.nn.functional import layer_norm\n"
        "def fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6):\n"
        "    return layer_norm(input, normalized_shape, weight, bias, eps)\n"
    )
    take_apex_from(tmp_path, monkeypatch)
    values = (torch.randn(5, 8), torch.randn(5, 8), torch.randn(8), torch.randn(8), 1e-5, 0.0)
    for mine, other in zip(vendors.add_norm_by_apex(*values), add_norm(*values), strict=True):
        torch.testing.assert_close(mine, other)


def test_lamb_is_the_papers_algorithm() -> None:
    """Written out by hand for two weights over three steps, in fp64."""
    torch.manual_seed(1)
    weights = [torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.zeros(3, dtype=torch.float64, requires_grad=True)]
    groups = [{"params": [weights[0]], "weight_decay": 0.1}, {"params": [weights[1]], "weight_decay": 0.0}]
    optimizer = Lamb(groups, lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.0)
    wanted = [weight.detach().clone() for weight in weights]
    means, squares = ([torch.zeros_like(weight) for weight in wanted] for _ in range(2))
    for step in (1, 2, 3):
        for i, decay in enumerate((0.1, 0.0)):
            gradient = torch.randn_like(wanted[i])
            weights[i].grad = gradient.clone()
            means[i] = 0.9 * means[i] + 0.1 * gradient
            squares[i] = 0.99 * squares[i] + 0.01 * gradient**2
            update = (means[i] / (1 - 0.9**step)) / ((squares[i] / (1 - 0.99**step)).sqrt() + 1e-6) + decay * wanted[i]
            norm = wanted[i].norm()
            wanted[i] = wanted[i] - 0.01 * (norm / update.norm() if norm > 0 else 1.0) * update
        optimizer.step()
    for weight, other in zip(weights, wanted, strict=True):
        torch.testing.assert_close(weight.detach(), other)
