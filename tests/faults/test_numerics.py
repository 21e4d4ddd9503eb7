"""Numbers that run away, and numbers with fewer digits."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor

from codid_lightning import CoDID
from codid_lightning.clustering import DPGMM
from codid_lightning.errors import DivergenceError, RunError
from codid_lightning.methods.stepping import LossMeter
from codid_lightning.training.callbacks.checkpoint import AtomicCheckpointIO, LastCheckpoint
from datamodules.base import Batch
from tests.codid.tiny import tiny_codid, tiny_data, tiny_trainer
from tests.faults.victims import CODID, at, last_checkpoint, load, run


class Poisoned(CoDID):
    """One batch of the third epoch is not finite."""

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        if self.current_epoch == 2 and batch_idx == 1:
            batch["x"] = batch["x"] * torch.inf
        super().training_step(batch, batch_idx)


def test_loss_is_not_finite(tmp_path: Path) -> None:
    """The run ends at that batch, names the loss, and keeps the checkpoint of the last good epoch."""
    data = tiny_data()
    callbacks = [LastCheckpoint(tmp_path / "checkpoints")]
    trainer = tiny_trainer(5, enable_checkpointing=True, callbacks=callbacks, plugins=[AtomicCheckpointIO()])
    kept = last_checkpoint(tmp_path)
    with pytest.raises(DivergenceError, match=rf"attribute loss .* epoch 2, batch 1\. Last good checkpoint: {kept}"):
        trainer.fit(tiny_codid(data, Poisoned), data)
    state = load(kept)
    assert state["epoch"] == 1
    assert all(torch.isfinite(v).all() for v in state["state_dict"].values() if isinstance(v, Tensor))


def test_learning_rate_too_large(tmp_path: Path) -> None:
    ended = run(["fit", *CODID, "--model.init_args.lr", "1e30", "--run_dir", "run"], tmp_path)
    assert ended.code == 1, ended.said
    assert "loss is not finite at epoch 0" in ended.said
    assert "Traceback" not in ended.said


def test_out_of_memory(tmp_path: Path) -> None:
    """An allocation of a petabyte inside a batch of the third epoch."""
    first = partial(at, "DiscriminatorAlignment.discriminate", 5, partial(torch.empty, 1 << 50))
    ended = run(["fit", *CODID, "--run_dir", "run"], tmp_path, first)
    assert ended.code == 1, ended.said
    assert "Out of memory with data.batch_size 64" in ended.said
    assert "Traceback" not in ended.said
    assert load(last_checkpoint(tmp_path / "run"))["epoch"] == 1


def fitted(precision: Any, **changes: Any) -> tuple[CoDID, dict[str, float]]:
    data = tiny_data(samples_per_mode=60)
    module = tiny_codid(data, reconstruction=0.5, **changes)
    trainer = tiny_trainer(4, precision=precision)
    trainer.fit(module, data)
    return module, {name: float(value) for name, value in trainer.callback_metrics.items()}


def test_precisions_agree() -> None:
    """Half as many digits: the parameters stay float32, and losses and accuracy agree."""
    exact, expected = fitted("32-true")
    mixed, found = fitted("bf16-mixed")
    assert {p.dtype for p in mixed.parameters()} == {torch.float32}
    for name in ("train/attribute", "train/reconstruction", "train/discriminator"):
        assert found[name] == pytest.approx(expected[name], rel=0.1), name
    assert found["val/acc"] == pytest.approx(expected["val/acc"], abs=0.1)
    assert exact.target_list[0].probs.dtype == mixed.target_list[0].probs.dtype == torch.float32


class Watched(DPGMM):
    """Notes whether mixed precision is on when it clusters."""

    seen: ClassVar[list[bool]] = []

    def fit(self, X: Tensor, y: Tensor | None = None, **kwargs: Any) -> Watched:
        self.seen.append(torch.is_autocast_enabled("cpu"))
        return super().fit(X, y, **kwargs)


def test_clustering_ignores_the_precision() -> None:
    """Mixed precision is off around the mixtures, and their covariances are float64."""
    Watched.seen.clear()
    fitted("bf16-mixed", discovery={"clusterer": Watched(max_rounds=0)})
    assert Watched.seen == [False, False]  # once for each value
    mixture = DPGMM(n_clusters=2).fit(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)))
    assert mixture.inner_covariances_.dtype == mixture.inner_means_.dtype == torch.float64


def test_half_precision_is_refused() -> None:
    """Scaled float16 losses would go past the scaler in methods of several steps."""
    data = tiny_data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no GPU to scale on
        trainer = tiny_trainer(1, plugins=[MixedPrecision("16-mixed", "cuda")])
    with pytest.raises(RunError, match="bf16-mixed"):
        trainer.fit(tiny_codid(data), data)


def test_collapsed_weights_are_said() -> None:
    """A weight net that gives all pairs the same weight is logged and warned about; one that does not is not."""

    class Collapsed(CoDID):
        def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
            super().on_train_batch_start(batch, batch_idx)
            torch.nn.init.zeros_(self.target_list[0].weight_net.out_weight)

    data = tiny_data()
    trainer = tiny_trainer(3)
    with pytest.warns(UserWarning, match="weighs all pairs the same"):
        trainer.fit(tiny_codid(data, Collapsed, alignment={"weights": {"lr": 0.0}}), data)
    assert float(trainer.callback_metrics["train/weight_spread"]) < 1e-4
    trainer = tiny_trainer(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(tiny_codid(data), data)
    assert float(trainer.callback_metrics["train/weight_spread"]) > 1e-4
    assert not [w for w in caught if "weighs all pairs the same" in str(w.message)]


def test_losses_add_up_alike_however_often_they_are_read() -> None:
    """A look in between, or a checkpoint to go on from, changes no digit; the first value gone astray is named."""
    values = torch.randn(100, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(100).remainder(7)
    once, often = LossMeter(), LossMeter()
    for batch, value in enumerate(values):
        once.add("attribute", value)
        often.add("attribute", value)
        if batch % 7 == 0:
            assert often.read() is None
        if batch == 50:
            state, often = often.state(), LossMeter()
            often.load(state)
    assert once.means() == often.means()
    for batch, (attribute, meta) in enumerate([(1.0, 2.0), (1.0, torch.nan), (torch.inf, torch.nan)]):
        once.batch = batch
        once.add("attribute", torch.tensor(attribute))
        once.add("meta", torch.tensor(meta))
    assert once.read() == ("meta", 1)


def test_networks_gone_astray_are_not_kept(tmp_path: Path) -> None:
    """Losses are looked at only now and then; a checkpoint in between does not get past that."""
    data = tiny_data()
    module, trainer = tiny_codid(data), tiny_trainer(1)
    trainer.fit(module, data)
    module.losses.add("meta", torch.tensor(torch.nan))
    with pytest.raises(DivergenceError, match="meta"):
        trainer.save_checkpoint(tmp_path / "astray.ckpt")
    assert not list(tmp_path.iterdir())
