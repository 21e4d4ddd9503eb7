"""Does aligning z_1 within modes add anything to the prior in the logits? Validation data decide.

    python -m benchmarks.alignment --root data --output results/alignment.md

CMNIST with few images and true modes, so that nothing but the alignment differs: the squared MMD of z_1 between the
values of a_2 within each mode, with Gaussian kernels of five widths, is added with several strengths. *Validation,
cells*: the mean over cells of (mode, a_2), which a shift weighs otherwise than training does.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.provenance import header
from codid_lightning.methods.baselines.mmd import rbf_mixture
from codid_lightning.methods.codid.module import CoDID
from codid_lightning.methods.codid.parts.alignments import Alignment, Encoding
from codid_lightning.methods.codid.target import View
from codid_lightning.training import build, quiet
from datamodules.base import AttributeDataModule, Batch

TESTS = ("test1", "test2", "test3")


@dataclass(frozen=True)
class KernelAlignment(Alignment):
    """Squared MMD of z_1 between the two values of a_2, the mean over clusters."""

    strength: float = 1.0

    def step(self, codid: CoDID, batch: Batch, encoding: Encoding, views: list[View]) -> None:
        """Move the encoder down the gradient of the discrepancy."""
        (view,) = views
        z = view.own.detach().requires_grad_()
        loss = discrepancy(z, view.slot, view.others)
        if loss is not None:
            codid.losses.add("mmd", loss)
            slope = torch.zeros_like(encoding.z)
            slope[:, 0] = torch.autograd.grad(self.strength * loss, z)[0]
            codid.step(codid.optimizer("inform"), encoding.parameters, encoding.gradients(slope))


def discrepancy(z: Tensor, slot: Tensor, others: Tensor) -> Tensor | None:
    """Mean squared MMD of z (B, d) between values of a_2, one-hot (B, 2), over clusters (B,) that have both."""
    kernel, losses = rbf_mixture(z), []
    for cluster in slot.unique():
        one, other = (((slot == cluster) & (others[:, value] > 0)).to(z) for value in (0, 1))
        if one.any() and other.any():
            difference = one / one.sum() - other / other.sum()
            losses.append(difference @ kernel @ difference)
    return torch.stack(losses).mean() if losses else None


@torch.no_grad()
def scores(model: CoDID, data: AttributeDataModule) -> list[float]:
    """Validation accuracy under training's correlation, mean over its cells without one, and the tests, in %."""
    found = []
    for name in ("val", *TESTS):
        split = data.datasets[name]
        batch = split[torch.arange(len(split))]
        z, a = model(batch["x"]), batch["a"]
        for dial in (1.0, 0.0) if name == "val" else (0.0,):
            model.dial = dial
            right = (model.attribute_logits(z, a)[0].argmax(1) == a[:, 0]).double()
            if name == "val" and dial == 0.0:
                cell = 2 * batch["mode"][:, 0] + a[:, 1]
                right = torch.stack([right[cell == c].mean() for c in cell.unique()])
            found.append(100 * float(right.mean()))
    return found


def main() -> None:
    """Train, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="Folder with MNIST.")
    parser.add_argument("--strengths", type=float, nargs="+", default=[0, 0.1, 1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples_per_mode", type=int, default=500)
    parser.add_argument("--output", type=Path, default=Path("alignment.md"))
    options = parser.parse_args()
    lines = [*header("Alignment within modes"), "", f"Accuracy of a_1 in %, means of {len(options.seeds)} seeds.", ""]
    lines += [
        "| strength | validation, `pi: train` | validation, cells | test 1 | test 2 | test 3 |",
        "|---|---|---|---|---|---|",
    ]
    for strength in options.strengths:
        found = []
        for seed in options.seeds:
            config = {
                "seed_everything": seed,
                "trainer.accelerator": "cpu",
                "trainer.max_epochs": options.epochs,
                "trainer.enable_progress_bar": False,
                "trainer.logger": False,
                "trainer.enable_checkpointing": False,
                "data.init_args.root": str(options.root),
                "data.init_args.samples_per_mode": options.samples_per_mode,
                "model.init_args.decoding": None,
                "model.init_args.discovery": {"start": 0, "every": None, "clusterer": {"class_path": "TrueModes"}},
            }
            if strength > 0:
                part = {"class_path": "benchmarks.alignment.KernelAlignment", "init_args": {"strength": strength}}
                config["model.init_args.alignment"] = part
            with quiet():
                files = ("configs/cmnist/codid_adaptive.yaml", "configs/schedules/short.yaml")
                run = build(*files, config, record=False)
                run.trainer.fit(run.module, run.data)
            assert isinstance(run.module, CoDID)
            found.append(scores(run.module.eval(), run.data))
        cells = [f"{statistics.fmean(column):.1f}" for column in zip(*found, strict=True)]
        lines.append(f"| {strength:g} | {' | '.join(cells)} |")
        options.output.write_text("\n".join([*lines, ""]))
        print(lines[-1], flush=True)


if __name__ == "__main__":
    main()
