"""What CoDID needs in order to work on CMNIST: one change at a time, judged on validation data: results/ideas.csv.

    python benchmarks/ideas.py --root data                    # all of them, about two minutes each on one core
    python benchmarks/ideas.py --root data --only t_literal   # some

Every idea trains on 10,000 images (2,000 per digit); the other 19,000 of the public training split are validation
data. Their accuracy in each cell (digit, color) is averaged with the cells' shares in training (`shift 1`), with equal
shares (`shift 2`) and with the opposite of training (`shift 3`): what the three test sets measure, on images that are
not theirs. Beside it stand how well a linear probe reads the color from z_1 when every cell weighs the same
(`probe_a2`, 0.5 is chance), the discriminator's loss (ln 4 = 1.386 once it can tell nothing) and what the clusters
follow. Finished rows are kept; test images are never read.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Callback, Trainer, seed_everything
from rich.progress import Progress
from sklearn.linear_model import LogisticRegression
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.rows import append_row, rows_of
from codid_lightning import Base, CoDID, ModeDiscovery
from codid_lightning.clustering import KMeans, TrueModes
from codid_lightning.methods.codid.parts.alignments import DiscriminatorAlignment
from codid_lightning.methods.codid.parts.mode_losses import PredictModes
from codid_lightning.methods.codid.parts.splits import LearnedSplits
from codid_lightning.methods.codid.parts.weights import LearnedWeights
from codid_lightning.metrics.clustering import mode_scores
from datamodules import CMNIST

PER_DIGIT, DIGITS = 2000, 5842  # of training images, and of what the public split has of its rarest digit
EPOCHS = 25
PARTS: dict[str, Callable[..., Any]] = {
    "discovery": ModeDiscovery,
    "mode_loss": PredictModes,
    "splits": LearnedSplits,
    "weights": LearnedWeights,
}
COMMON = {
    "backbone": "mlp",
    "reconstruction": 1.1,
    "discovery.start": 8,
    "discovery.every": 3,
    "discovery.n_clusters": [6, 4],
}
FAST = {"alignment.steps": 5, "alignment.lr": 1e-3}
SETTLED = FAST | {"decay_from": 0.4}
APART = SETTLED | {"alignment.encoder_lr": 1e-3}
CALM = APART | {"alignment.momentum": 0.0}
LIGHT = CALM | {"mode_loss.weight": 0.01}
MIXTURE = {"weights": None, "splits": None}
T = MIXTURE | {"discovery.clusterer": TrueModes, "discovery.every": None}
TRUE_COUNTS = {"discovery.clusterer": KMeans, "discovery.n_clusters": [3, 2]}
KM = MIXTURE | CALM | TRUE_COUNTS | {"discovery.every": None, "discovery.restart": True}
IDEAS: dict[str, dict[str, Any]] = {
    # How far the adversary gets with the true modes: the part that has nothing to do with discovery.
    "t_literal": T,  # the paper's N_d = 15 and l_d = 3e-4
    "t_fewer_faster": T | FAST,  # N_d = 5, l_d = 1e-3
    "t_decay": T | SETTLED,  # learning rates of the encoder fall to zero
    "t_discriminator_3e-3": T | SETTLED | {"alignment.lr": 3e-3},
    "t_own_adam": T | APART,  # disentangle does not share inform's moments
    "t_no_momentum": T | CALM,
    "t_no_momentum_3e-3": T | CALM | {"alignment.encoder_lr": 3e-3},
    "t_no_mode_prediction": T | CALM | {"mode_loss": None},
    "t_weighted": T | CALM | {"weights": LearnedWeights},
    "t_mode_prediction_0.01": T | LIGHT,
    "t_light_3e-3": T | LIGHT | {"alignment.encoder_lr": 3e-3},
    # Modes to discover.
    "itdpm": MIXTURE | CALM,
    "itkm_true_counts": MIXTURE | CALM | TRUE_COUNTS,
    "codid_literal": {},
    "codid": CALM,
    "codid_3e-3": CALM | {"alignment.encoder_lr": 3e-3},
    "codid_light": LIGHT,
    "codid_one_cluster": CALM | {"discovery.n_clusters": 1},
    "codid_one_cluster_weights": CALM | {"discovery.n_clusters": 1, "weights.lr": 1e-2},
    "codid_one_cluster_aligned": CALM | {"discovery.n_clusters": 1, "weights.lr": 1e-2, "splits.weight_alignment": 3.0},
    "codid_weights_1e-2": CALM | {"weights.lr": 1e-2},
    "codid_early": CALM | {"discovery.start": 2},
    "codid_ascend": CALM | {"weights.direction": "ascend"},
    "codid_weights_1e-4": CALM | {"weights.lr": 1e-4},
    "codid_unscaled": CALM | {"weights.scale": "none"},  # the sigmoid's weights as they are
    "codid_beta_1e-2": CALM | {"weights.step": 1e-2},  # the step of the virtual update, which is 1e-3 otherwise
    "codid_beta_1e-4": CALM | {"weights.step": 1e-4},
    "codid_every_epoch": CALM | {"discovery.every": 1},  # N_cl, which is 3 otherwise
    "km_true_counts": KM,
    "km_true_counts_goes_on": KM | {"discovery.restart": False},  # without starting anew once labels are known
}
FIELDS = ("idea", "seed", "shift_1", "shift_2", "shift_3", "probe_a2", "discriminator", "clusters")
FIELDS += ("nmi", "nmi_a2", "nmi_given_a2", "cpu_seconds")


class Quiet(Callback):
    """Advances a progress bar by epoch."""

    def __init__(self, bar: Progress, task: Any) -> None:
        self.bar, self.task = bar, task

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """One more epoch."""
        self.bar.advance(self.task)


def arguments_of(settings: dict[str, Any]) -> dict[str, Any]:
    """CoDID's arguments: each part is made of its settings, `alignment.lr` being a setting of the alignment."""
    made = {key: value() if callable(value) else value for key, value in settings.items()}
    plain = {key: value for key, value in made.items() if "." not in key}
    of: dict[str, dict[str, Any]] = {part: {} for part in ("alignment", *PARTS)}
    for key in made.keys() - plain.keys():
        part, _, name = key.partition(".")
        of[part][name] = made[key]
    found = {part: kind(**of[part]) for part, kind in PARTS.items()} | plain
    return found | {"alignment": DiscriminatorAlignment(**of["alignment"], weights=found.pop("weights"))}


def train(
    settings: dict[str, Any] | None, root: Path, seed: int, epochs: int, callback: Callback
) -> tuple[Any, CMNIST, dict]:
    """A trained model (BASE without settings), its data and what it logged last."""
    seed_everything(seed, verbose=False)
    data = CMNIST(root=root, seed=seed, val_fraction=1 - PER_DIGIT / DIGITS)
    facts = (data.input_shape, data.attribute_sizes, data.test_names, data.test_attributes)
    if settings is None:
        model: Any = Base(*facts, backbone="mlp")
    else:
        model = CoDID(*facts, **arguments_of(COMMON | settings))
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )
    trainer.fit(model, datamodule=data)
    return model.eval(), data, {name: float(value) for name, value in trainer.callback_metrics.items()}


@torch.no_grad()
def validate(model: Any, data: CMNIST) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """z_1, hits of a_1, mode and color of all validation images."""
    samples = data.datasets["val"]
    parts = [samples[rows] for rows in torch.arange(len(samples)).split(1024)]
    z = torch.cat([model(part["x"])[:, 0] for part in parts])
    hits = model.predictors[0](z).argmax(1) == samples.a[:, 0]
    return z, hits.double(), samples.mode[:, 0], samples.a[:, 1]


def shifted_accuracies(hits: Tensor, mode: Tensor, a2: Tensor, p: Tensor) -> list[float]:
    """Accuracy with a_2 given the mode as in training (p, values x modes), uniform, and as 1 - p."""
    values, modes = p.shape
    cells = torch.stack([torch.stack([hits[(mode == m) & (a2 == v)].mean() for m in range(modes)])
                         for v in range(values)])  # fmt: skip
    against = (1 - p) / (values - 1)
    return [float((cells * q).sum(0).mean()) for q in (p.double(), torch.full_like(cells, 1 / values), against)]


def color_probe(z: Tensor, mode: Tensor, a2: Tensor) -> float:
    """Accuracy of a_2 from z_1 by a linear probe; every (mode, a_2) counts the same, in training and in the score."""
    cell = mode * 2 + a2
    weight = (1.0 / cell.bincount().clamp_min(1).double())[cell].numpy()
    order = np.random.default_rng(0).permutation(len(z))
    half = min(4000, len(z) // 2)
    fit, score = order[:half], order[half : 2 * half]
    x, y = z.numpy(), a2.numpy()
    probe = LogisticRegression(max_iter=300).fit(x[fit], y[fit], sample_weight=weight[fit] / weight[fit].mean())
    return float(probe.score(x[score], y[score], sample_weight=weight[score]))


def measure(
    idea: str, settings: dict[str, Any] | None, root: Path, seed: int, epochs: int, callback: Callback
) -> dict[str, Any]:
    """One row."""
    start = time.process_time()
    model, data, logged = train(settings, root, seed, epochs, callback)
    z, hits, mode, a2 = validate(model, data)
    row: dict[str, Any] = {"idea": idea, "seed": seed, "cpu_seconds": round(time.process_time() - start)}
    row |= dict(zip(FIELDS[2:5], shifted_accuracies(hits, mode, a2, data.p), strict=True))
    row["probe_a2"] = color_probe(z, mode, a2)
    if settings is not None:
        samples, labels = data.datasets["train"], model.target_list[0].labels.long()
        scores = mode_scores(labels, samples.mode[:, 0], samples.a[:, 0], samples.a[:, 1])
        row |= {name: scores[f"modes/{name}"] for name in ("nmi", "nmi_a2", "nmi_given_a2")}
        row |= {"clusters": int(scores["modes/count"]), "discriminator": logged["train/discriminator"]}
    return {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in row.items()}


def main() -> int:
    """Measure what is missing; every row is on disk as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--output", type=Path, default=Path("results/ideas.csv"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", choices=["base", *IDEAS], help="these ideas")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    every: dict[str, dict[str, Any] | None] = {"base": None, **IDEAS}
    known = {(row["idea"], int(row["seed"])) for row in rows_of(options.output)}
    todo = [(idea, seed) for seed in options.seeds for idea in options.only or every if (idea, seed) not in known]
    with Progress() as bar:
        for idea, seed in todo:
            advance = Quiet(bar, bar.add_task(idea, total=options.epochs))
            row = measure(idea, every[idea], options.root, seed, options.epochs, advance)
            append_row(options.output, FIELDS, row)
            bar.console.print(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
