"""CoDID small enough to be trained in a second, and benches to run single steps on."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch import Tensor, nn

from codid_lightning import CoDID
from codid_lightning.clustering import Clustering
from codid_lightning.methods.codid.discovery import ModeDiscovery
from codid_lightning.methods.codid.parts.alignments import DiscriminatorAlignment
from codid_lightning.methods.codid.parts.mode_losses import PredictModes
from codid_lightning.methods.codid.parts.splits import LearnedSplits
from codid_lightning.methods.codid.parts.weights import LearnedWeights
from codid_lightning.methods.codid.target import Target
from codid_lightning.nn.statistics import BATCH_NORMS
from datamodules.base import AttributeDataModule, Batch
from datamodules.toy import Toy

SETTINGS: dict[str, Any] = {"latent_dim": 4, "max_clusters": 5}
PARTS: dict[str, tuple[type, dict[str, Any]]] = {  # default class and settings of each part
    "discovery": (ModeDiscovery, {"n_clusters": [2, 4], "start": 1, "every": 1, "until": None}),
    "mode_loss": (PredictModes, {}),
    "alignment": (DiscriminatorAlignment, {"steps": 2}),
    "splits": (LearnedSplits, {}),
}


def arguments(**changes: Any) -> dict[str, Any]:
    """Arguments of a tiny CoDID: a part is changed by a dictionary of settings, or replaced by anything else."""
    found = {**SETTINGS, **{name: change for name, change in changes.items() if name not in PARTS}}
    for name, (cls, settings) in PARTS.items():
        change = changes.get(name, {})
        if isinstance(change, dict):
            change = {**settings, **change}
            if isinstance(change.get("weights"), dict):
                change["weights"] = LearnedWeights(**change["weights"])
            change = cls(**change)
        found[name] = change
    return found


def tiny_data(**changes: Any) -> Toy:
    return Toy(**{"samples_per_mode": 20, "batch_size": 36, **changes})


def tiny_codid(data: AttributeDataModule, cls: type[CoDID] = CoDID, seed: int = 0, **changes: Any) -> CoDID:
    torch.manual_seed(seed)
    facts = (data.input_shape, data.attribute_sizes, data.test_names, data.test_attributes)
    return cls(*facts, **arguments(**changes))


def tiny_trainer(max_epochs: int = 3, **changes: Any) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    plain = {"accelerator": "cpu", "num_sanity_val_steps": 0, "enable_model_summary": False}
    return Trainer(max_epochs=max_epochs, use_distributed_sampler=False, **{**quiet, **plain, **changes})


def fitted(max_epochs: int = 3, data: AttributeDataModule | None = None, **changes: Any) -> CoDID:
    data = tiny_data() if data is None else data
    module = tiny_codid(data, **changes)
    tiny_trainer(max_epochs).fit(module, data)
    return module


def random_clusters(target: Target, a: Tensor, seed: int = 0) -> Clustering:
    """Some clustering of samples with attributes a (N, Q): all slots but each value's last are in use."""
    generator = torch.Generator().manual_seed(seed)
    values, slots, dim = target.values, target.slots, target.sub_means.shape[2]
    used, dtype = max(1, slots - 1), next(target.parameters()).dtype
    probs = torch.zeros(len(a), slots, dtype=dtype)
    probs[:, :used] = torch.rand(len(a), used, generator=generator, dtype=dtype)
    probs /= probs.sum(1, keepdim=True)
    active = (torch.arange(slots) < used).expand(values, slots).clone()
    sub_means = torch.randn(values, slots, 2, dim, generator=generator, dtype=dtype)
    first = torch.rand(len(a), generator=generator)
    return Clustering(
        labels=a[:, target.attribute] * slots + probs.argmax(1),
        probs=probs,
        active=active,
        inherit=torch.diag_embed(active.to(dtype)),
        share=torch.ones(values, slots, dtype=dtype),
        means=sub_means.mean(2),
        sub_means=sub_means,
        sub_probs=torch.stack([first, 1 - first], dim=1),
        moves=(),
    )


def without_normalisation(module: nn.Module) -> nn.Module:
    """Replace BatchNorm by the identity, so that samples of a batch do not see each other."""
    for name, child in module.named_children():
        replaced = nn.Identity() if isinstance(child, BATCH_NORMS) else without_normalisation(child)
        setattr(module, name, replaced)
    return module


def bench(module: CoDID, a: Tensor, epoch: int = 1) -> CoDID:
    """Attach optimizers and a stand-in for the trainer, and let the module adopt random clusters of all samples."""
    trainer = SimpleNamespace(current_epoch=epoch, world_size=1, optimizers=module.configure_optimizers())
    trainer.datamodule = SimpleNamespace(datasets={"train": SimpleNamespace(a=a)})
    module.trainer = trainer
    module.train()
    for target in module.target_list:
        if target.moded:
            module.adopt(target, random_clusters(target, a), torch.zeros(len(a), module.latent_dim))
    module.generator = torch.Generator().manual_seed(0)
    return module


def random_batch(module: CoDID, size: int, seed: int = 0, shape: tuple[int, ...] = (3,)) -> Batch:
    """Samples 0, 1, ... with random inputs and attributes."""
    generator = torch.Generator().manual_seed(seed)
    dtype = next(module.parameters()).dtype
    a = torch.stack([torch.randint(n, (size,), generator=generator) for n in module.attribute_sizes], dim=1)
    x = torch.randn(size, *shape, generator=generator, dtype=dtype)
    return Batch(x=x, a=a, mode=torch.full_like(a, -1), index=torch.arange(size))


def gradients_of(module: LightningModule, step: Callable[[], None]) -> dict[str, Tensor]:
    """Gradients the optimizers receive during a step, by parameter name, summed over updates; parameters stay."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    kept = {name: parameter.detach().clone() for parameter, name in names.items()}
    received: dict[str, Tensor] = {}

    def record(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    name = names[parameter]
                    received[name] = received.get(name, 0) + parameter.grad.detach().clone()

    hooks = [optimizer.register_step_pre_hook(record) for optimizer in module.trainer.optimizers]
    step()
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        for parameter, name in names.items():
            parameter.data.copy_(kept[name])  # graphs of earlier passes stay valid
    return received
