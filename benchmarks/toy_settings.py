"""Which settings the toy experiments need, judged on validation data: results/toy_settings.csv.

    python benchmarks/toy_settings.py                                  # all of them, about a minute each on one core
    python benchmarks/toy_settings.py --only four_t four_codid         # some
    python benchmarks/toy_settings.py --seeds 0 1 2                    # on more seeds

Every setting trains on as many samples as the data set has, and is judged on 60,000 or more further ones with the
correlations of training. Each counts by how much likelier its cell of modes and attributes is under the distribution of
a test than under that of training: an estimate of the accuracies on tests 1, 2 and 3 that reads none of their samples.
`modes` are the NMI of discovered and true modes, `discriminator` the loss of the adversary, ln 4 = 1.386 once it can
tell nothing.
Finished rows are kept.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.rows import append_row, rows_of
from codid_lightning.experiments.matrix import method_configs
from codid_lightning.training import Run, build, quiet
from datamodules import Toy, ToyFourAttributes
from datamodules.correlated import anticorrelated
from datamodules.toy import joint_distribution, solve_couplings

JUDGED = {"toy": 60_000, "toy_nine_modes": 90_000, "toy_four_attributes": 600_000}  # the last has very rare cells
TRAINED = {"toy": 5400, "toy_nine_modes": 8100, "toy_four_attributes": 9000}
MODES = {"toy": 6, "toy_nine_modes": 9}
COMPARED_NOISE = 0.15  # of four attributes when settings were compared; their data have 0.1 since
Setting = tuple[str, str, Mapping[str, Any]]  # data set, method, keys of the model (or part.key), values
WEIGHT_LR, STRENGTH = "alignment.init_args.weights.lr", "alignment.init_args.strength"
WEIGHT_SCALE, MODE_LOSS = "alignment.init_args.weights.scale", "mode_loss.init_args.weight"
START, EVERY, CLUSTERS = (f"discovery.init_args.{name}" for name in ("start", "every", "n_clusters"))
PRIOR_SCALE = "discovery.init_args.clusterer.init_args.psi_scale"
WIDER = {PRIOR_SCALE: 0.1, WEIGHT_LR: 1e-3}  # a wider prior, and a faster weight net
FOUR, TWO = "toy_four_attributes", "toy"
SETTINGS: dict[str, Setting] = {
    # Four attributes: the budget, with BASE and the true modes, then what CoDID is given.
    "four_base": (FOUR, "base", {}),
    "four_base_40_epochs": (FOUR, "base", {"trainer.max_epochs": 40}),
    "four_base_40_epochs_4e-3": (FOUR, "base", {"trainer.max_epochs": 40, "lr": 4e-3}),
    "four_base_d32": (FOUR, "base", {"latent_dim": 32}),
    "four_t": (FOUR, "t", {}),
    "four_t_40_epochs": (FOUR, "t", {"trainer.max_epochs": 40}),
    "four_t_40_epochs_4e-3": (FOUR, "t", {"trainer.max_epochs": 40, "lr": 4e-3}),
    "four_t_d32": (FOUR, "t", {"latent_dim": 32}),
    "four_codid": (FOUR, "codid", {}),
    "four_codid_every_epoch": (FOUR, "codid", {EVERY: 1}),
    "four_codid_weights_1e-4": (FOUR, "codid", {WEIGHT_LR: 1e-4}),
    "four_codid_weights_1e-3": (FOUR, "codid", {WEIGHT_LR: 1e-3}),
    "four_codid_weights_1e-3_unscaled": (FOUR, "codid", {WEIGHT_LR: 1e-3, WEIGHT_SCALE: "none"}),
    "four_codid_weights_1e-3_every_epoch": (FOUR, "codid", {WEIGHT_LR: 1e-3, EVERY: 1}),
    "four_codid_wider": (FOUR, "codid", WIDER),
    "four_codid_wider_one_cluster": (FOUR, "codid", WIDER | {CLUSTERS: 1, START: 1}),
    "four_codid_wider_three_clusters": (FOUR, "codid", WIDER | {CLUSTERS: 3}),
    "four_codid_wider_3_epochs": (FOUR, "codid", WIDER | {START: 3}),
    "four_codid_wider_mode_prediction_0.3": (FOUR, "codid", WIDER | {MODE_LOSS: 0.3}),
    "four_codid_wider_4e-3": (FOUR, "codid", WIDER | {"lr": 4e-3}),
    "four_base_noise_0.1": (FOUR, "base", {"data.noise": 0.1}),
    "four_t_noise_0.1": (FOUR, "t", {"data.noise": 0.1}),
    "four_codid_noise_0.1": (FOUR, "codid", {"data.noise": 0.1}),
    "four_a_cmi_0.3_noise_0.1": (FOUR, "a_cmi", {"data.noise": 0.1, "strength": 0.3}),
    "four_a_cmi_1_noise_0.1": (FOUR, "a_cmi", {"data.noise": 0.1, "strength": 1}),
    "four_a_cmi_0.1": (FOUR, "a_cmi", {"strength": 0.1}),
    "four_a_cmi_0.3": (FOUR, "a_cmi", {"strength": 0.3}),
    "four_a_cmi_1": (FOUR, "a_cmi", {"strength": 1}),
    "four_a_cmi_3": (FOUR, "a_cmi", {"strength": 3}),
    "four_a_cmi_10": (FOUR, "a_cmi", {}),
    # Two attributes: the budget, CoDID, and what makes A-CMI as flat as in the paper's figure.
    "toy_base": (TWO, "base", {}),
    "toy_base_2e-3": (TWO, "base", {"lr": 2e-3}),
    "toy_base_3e-3": (TWO, "base", {"lr": 3e-3}),
    "toy_t": (TWO, "t", {}),
    "toy_t_2e-3": (TWO, "t", {"lr": 2e-3}),
    "toy_t_3e-3": (TWO, "t", {"lr": 3e-3}),
    "toy_t_strength_1": (TWO, "t", {STRENGTH: 1}),
    "toy_t_strength_4": (TWO, "t", {STRENGTH: 4}),
    "toy_codid": (TWO, "codid", {}),
    "toy_codid_weights_1e-3": (TWO, "codid", {WEIGHT_LR: 1e-3}),
    "toy_codid_weights_1e-3_strength_1": (TWO, "codid", {WEIGHT_LR: 1e-3, STRENGTH: 1}),
    "toy_codid_weights_1e-3_strength_4": (TWO, "codid", {WEIGHT_LR: 1e-3, STRENGTH: 4}),
    "toy_codid_weights_1e-3_six_clusters": (TWO, "codid", {WEIGHT_LR: 1e-3, CLUSTERS: 6}),
    "toy_a_cmi_10": (TWO, "a_cmi", {"strength": 10, "adversary_lr": 1e-3}),
    "toy_a_cmi_100": (TWO, "a_cmi", {"strength": 100, "adversary_lr": 1e-3}),
    "toy_a_cmi_1000": (TWO, "a_cmi", {"strength": 1000, "adversary_lr": 1e-3}),
    "toy_a_cmi_1000_3e-4": (TWO, "a_cmi", {"strength": 1000, "adversary_lr": 3e-4}),
    "toy_a_cmi_1000_1e-4": (TWO, "a_cmi", {"strength": 1000, "adversary_lr": 1e-4}),
    "toy_a_cmi_10000_3e-4": (TWO, "a_cmi", {"strength": 10000, "adversary_lr": 3e-4}),
}
SHIFTS = ("shift_1", "shift_2", "shift_3")
FIELDS = ("setting", "seed", *SHIFTS, *(f"a2_{name}" for name in SHIFTS), "modes", "a2_modes", "discriminator")
FIELDS += ("cpu_seconds",)


def train(setting: Setting, seed: int) -> Run:
    """A trained model with its data."""
    dataset, method, changes = setting
    keys = {f"data.init_args.{key}": value for key, value in {**data_of(dataset), "seed": seed}.items()}
    keys |= {config_key(key): value for key, value in changes.items()}
    keys |= {"seed_everything": seed, "trainer.accelerator": "cpu", "trainer.limit_val_batches": 0}
    keys |= {"trainer.enable_progress_bar": False, "trainer.enable_checkpointing": False}
    run = build(*method_configs(dataset, method), keys, record=False)
    run.trainer.fit(run.module, datamodule=run.data)
    return run


def config_key(key: str) -> str:
    """Where a setting's key stands in a config."""
    part, _, name = key.partition(".")
    return {"trainer": key, "data": f"data.init_args.{name}"}.get(part, f"model.init_args.{key}")


def data_of(dataset: str) -> dict[str, float]:
    """Arguments of the data that leave the training set as large as it is and make a large validation set."""
    judged, trained = JUDGED[dataset], TRAINED[dataset]
    size = "samples_per_mode" if dataset in MODES else "samples"
    arguments = {size: (judged + trained) // MODES.get(dataset, 1), "val_fraction": judged / (judged + trained)}
    return arguments | ({"noise": COMPARED_NOISE} if dataset == FOUR else {})


def importance(data: Toy | ToyFourAttributes, mode: Tensor, a: Tensor) -> Tensor:
    """How much likelier each sample's cell is in tests 1, 2 and 3 than in training, (3, N)."""
    if isinstance(data, ToyFourAttributes):
        couplings = solve_couplings(data.informations)
        joints = [torch.from_numpy(joint_distribution(sign * couplings)) for sign in (1, 0, -1)]
        return torch.stack([(j / joints[0])[mode[:, 0], mode[:, 1], a[:, 2], a[:, 3]] for j in joints])
    p = data.p
    tables = (p, torch.full_like(p, 1 / len(p)), anticorrelated(p))
    return torch.stack([(table / p)[a[:, 1], mode[:, 0]] for table in tables])


@torch.no_grad()
def judge(run: Run) -> dict[str, float]:
    """Estimated accuracies of a_1 and, where it is to be disentangled, a_2 on the three tests."""
    model, data = run.module.eval(), run.data
    samples = data.datasets["val"]
    z = torch.cat([model(samples[rows]["x"]) for rows in torch.arange(len(samples)).split(8192)])
    weight = importance(data, samples.mode, samples.a)
    scores = {}
    for q, prefix in enumerate(("", "a2_") if isinstance(data, ToyFourAttributes) else ("",)):
        hits = (model.predictors[q](z[:, q]).argmax(1) == samples.a[:, q]).double()
        accuracies = (weight * hits).sum(1) / weight.sum(1)
        scores |= {f"{prefix}{name}": float(accuracy) for name, accuracy in zip(SHIFTS, accuracies, strict=True)}
    return scores


def measure(name: str, seed: int) -> dict[str, Any]:
    """One row."""
    start = time.process_time()
    with quiet():
        run = train(SETTINGS[name], seed)
    row: dict[str, Any] = {"setting": name, "seed": seed, **judge(run)}
    logged = {key: float(value) for key, value in run.trainer.callback_metrics.items()}
    known = {"modes": "modes/nmi", "a2_modes": "modes/a2/nmi", "discriminator": "train/discriminator"}
    row |= {field: logged[key] for field, key in known.items() if key in logged}
    row |= {"discriminator": logged["train/adversary"]} if "train/adversary" in logged else {}
    row["cpu_seconds"] = round(time.process_time() - start)
    return {field: f"{value:.4f}" if isinstance(value, float) else value for field, value in row.items()}


def main() -> int:
    """Measure what is missing; every row is on disk as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/toy_settings.csv"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", choices=list(SETTINGS), help="these settings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = {(row["setting"], int(row["seed"])) for row in rows_of(options.output)}
    todo = [(name, seed) for seed in options.seeds for name in options.only or SETTINGS if (name, seed) not in known]
    for name, seed in todo:
        row = measure(name, seed)
        append_row(options.output, FIELDS, row)
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
