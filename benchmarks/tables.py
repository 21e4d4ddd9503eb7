"""A table measured at two sites: BASE, CoDID on harmonised rows, and what 200 unlabelled rows add: results/tables.md.

    python -m benchmarks.tables --root data             # seeds 10, 11, 12; about two minutes each on one core
    python -m benchmarks.tables --root data --no_sites  # the same digits and correlation, sites without effects

30 principal components of occluded digits 8, 4, 2 | 3, 9 of MNIST; a_1 is the group. Site 1 (a_2) has its own offset
and scale in every column, and digits prefer sites as they prefer colors in CMNIST. Both methods train for 15 epochs
with the same schedule. Test images choose nothing; the last epoch is tested.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer, seed_everything
from torch import Tensor

from benchmarks.provenance import header
from codid_lightning import Base, CoDID, ModeDiscovery
from codid_lightning.methods.codid.parts.harmonised import HarmonisedSamples
from codid_lightning.methods.codid.parts.prior import PriorInLogits
from datamodules import CMNIST
from datamodules.base import seeded_generator
from datamodules.colored import square_occlusion

COLUMNS, OCCLUDED, UNLABELLED = 30, 0.3, 200
SCHEDULE: dict[str, Any] = {"lr": 1e-3, "decay_from": 0.4, "latent_dim": 128, "reconstruction": 0.0}
PARTS: dict[str, Any] = {
    "moded": [], "discovery": ModeDiscovery(n_clusters=1), "mode_loss": PriorInLogits(), "alignment": None,
    "splits": None, "decoding": HarmonisedSamples(),
}  # fmt: skip


class DigitsAtSites(CMNIST):
    """Rows of principal components, with the groups, modes and correlation of CMNIST.

    Args:
        effects: Whether site 1 shifts and scales columns.
    """

    input_shape = (COLUMNS,)
    attribute_names = ("parity", "site")
    value_names = (("even", "odd"), ("0", "1"))
    transform = None

    def __init__(self, effects: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.offset = torch.randn(COLUMNS, generator=torch.Generator().manual_seed(7)) * effects
        self.scale = 1 + 0.3 * torch.rand(COLUMNS, generator=torch.Generator().manual_seed(8)) * effects

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Principal components (N, 30) of occluded images, those of the training images for both, and modes."""
        images, modes = super().load(train)
        generator = seeded_generator(self.seed, 5, int(train))
        x = (images / 255 * (1 - square_occlusion(len(images), images.shape[1], OCCLUDED, generator))).flatten(1)
        if train:
            some = torch.randperm(len(x), generator=generator)[:8000]
            torch.manual_seed(self.seed)
            self.center, self.axes = x.mean(0), torch.pca_lowrank(x[some], COLUMNS)[2]
            self.spread = ((x - self.center) @ self.axes).std(0)
        return (x - self.center) @ self.axes / self.spread, modes

    def render(self, raw: Tensor, a2: Tensor, generator: torch.Generator) -> Tensor:
        """Rows as the sites measure them."""
        site = a2[:, None].float()
        return raw * (1 + site * (self.scale - 1)) + site * self.offset


def trained(method: type[Any], data: DigitsAtSites, epochs: int, seed: int, **arguments: Any) -> Any:
    """A model after its last epoch."""
    seed_everything(seed, verbose=False)
    facts = {k: getattr(data, k) for k in ("input_shape", "attribute_sizes", "test_names", "test_attributes")}
    model = method(**facts, **SCHEDULE, **arguments)
    trainer = Trainer(
        accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(model, data)
    return model.eval()


@torch.no_grad()
def right(model: Any, data: DigitsAtSites, test: str) -> float:
    """Percentage of right predictions of a_1."""
    split = data.datasets[test]
    batch = split[torch.arange(len(split))]
    predicted = model.predict_step(batch, 0)["probabilities"][0].argmax(1)
    return 100 * float((predicted == batch["a"][:, 0]).double().mean())


def adapted(model: Any, data: DigitsAtSites, test: str) -> float:
    """The same after adaptation to unlabelled rows of the test set."""
    split = data.datasets[test]
    rows = torch.randperm(len(split), generator=torch.Generator().manual_seed(1))[:UNLABELLED]
    batch = split[rows]
    model.adapt(batch["x"], batch["a"][:, 1:])
    score = right(model, data, test)
    model.adaptation = None
    return score


def scores_of(seed: int, root: str, epochs: int, effects: bool) -> dict[str, list[float]]:
    """Scores on the three tests, by method."""
    data = DigitsAtSites(effects, root=root, seed=seed, batch_size=128, download=False)
    base = trained(Base, data, epochs, seed)
    ours = trained(CoDID, data, epochs, seed, **PARTS)
    gate = {name.removeprefix("gate/"): round(value, 3) for name, value in ours.counterfactuals.gate_metrics.items()}
    print(f"seed {seed}: {gate}", flush=True)
    return {
        "BASE": [right(base, data, test) for test in data.test_names],
        "content only": [right(ours, data, test) for test in data.test_names],
        f"dial, {UNLABELLED} unlabelled": [adapted(ours, data, test) for test in data.test_names],
    }


def lines_of(scores: dict[int, dict[str, list[float]]]) -> list[str]:
    """A table of means and standard deviations over seeds."""
    found = ["| | test 1 | test 2 | test 3 |", "|---|---|---|---|"]
    for method in next(iter(scores.values())):
        tests = zip(*(of_seed[method] for of_seed in scores.values()), strict=True)
        cells = [f"{statistics.mean(t):.1f} ± {statistics.stdev(t) if len(t) > 1 else 0:.1f}" for t in tests]
        found.append(f"| {method} | {' | '.join(cells)} |")
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--no_sites", action="store_true")
    parser.add_argument("--output", type=Path, help="file of the table")
    args = parser.parse_args()
    scores = {seed: scores_of(seed, args.root, args.epochs, not args.no_sites) for seed in args.seeds}
    seeds = f"Accuracy of a_1 in %, mean and standard deviation over seeds {args.seeds}; {args.epochs} epochs."
    text = "\n".join([*header("Tables measured at two sites"), "", seeds, "", *lines_of(scores), ""])
    print(text)
    if args.output:
        args.output.write_text(text)


if __name__ == "__main__":
    main()
