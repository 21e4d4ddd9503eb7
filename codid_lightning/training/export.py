"""A trained run as one file that needs torch alone: raw inputs in, probabilities of the first attribute out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codid_lightning.errors import RunError
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.training.loading import LoadedRun
from codid_lightning.training.runs import replacing, writable
from datamodules.arrays import ArrayDataModule
from datamodules.base import AttributeDataModule, Batch
from datamodules.own import OwnArrays
from datamodules.scaling import Scaling

FACTS = "codid.json"  # in the file, beside the program
FORMAT = 1
LARGEST = 1e-5  # difference of probabilities between the file and the model


class Predictor(nn.Module):
    """What the file computes.

    Args:
        model: In evaluation mode.
        scaling: Of raw inputs; None if the model takes them as they are.
    """

    def __init__(self, model: DisentanglementModule, scaling: Scaling | None) -> None:
        super().__init__()
        self.model, self.scaling = model, scaling

    def forward(self, x: Tensor, others: Tensor) -> Tensor:
        """Probabilities (B, values) of the first attribute.

        Args:
            x: Raw inputs (B, ...).
            others: Numbers (B, Q - 1) of the other attributes' values; most methods do not look at them.
        """
        x = x if self.scaling is None else self.scaling(x)
        a = torch.cat([torch.zeros_like(others[:, :1]), others], dim=1)
        z = self.model.represent(Batch(x=x, a=a, mode=-torch.ones_like(a), index=torch.zeros_like(a[:, 0])))
        return self.model.attribute_logits(z, a)[0].softmax(1)


def export(run: LoadedRun, file: Path) -> float:
    """Write the file, read it back and compare it with the model; the largest difference of probabilities.

    Raises:
        RunError: torch cannot export the method, or the file predicts differently.
    """
    model, data = run.model.cpu().eval(), run.data
    x, others = _samples(data)
    predictor = Predictor(model, _scaling(data)).eval()
    rows = torch.export.Dim("rows", min=1)
    try:
        with torch.no_grad():
            program = torch.export.export(
                predictor, (x, others), dynamic_shapes={"x": {0: rows}, "others": {0: rows}}, strict=False
            )
    except Exception as error:  # of many kinds: torch.export has no common parent
        reason = str(error).strip().partition("\n")[0]
        raise RunError(f"torch cannot export {run.name}: {reason}") from error
    with writable(file, "--output"):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as part:
            torch.export.save(program, part, extra_files={FACTS: json.dumps(facts(run))})
    difference = _difference(file, predictor, x, others)
    if not difference <= LARGEST:
        raise RunError(f"{file} predicts other probabilities than the model, by up to {difference:.1e}: do not use it.")
    return difference


def facts(run: LoadedRun) -> dict[str, Any]:
    """What a user of the file must know: shapes, names, and what the model takes for granted."""
    data = run.data
    scaling = _scaling(data)
    return {
        "format": FORMAT,
        "name": run.name,
        "inputs": list(getattr(data, "inputs", [])),
        "input_shape": list(scaling.center.shape if scaling and scaling.kind == "window" else data.input_shape),
        "scaling": None if scaling is None else scaling.kind,
        "attributes": list(data.attribute_names),
        "values": [list(names) for names in data.value_names],
        "pi": run.settings.get("model", {}).get("init_args", {}).get("pi"),
    }


def _scaling(data: AttributeDataModule) -> Scaling | None:
    """The scaling that raw inputs need; other data sets hold inputs as the model takes them."""
    if isinstance(data, OwnArrays | ArrayDataModule):
        return data.scaling
    return None


def _samples(data: AttributeDataModule, most: int = 64) -> tuple[Tensor, Tensor]:
    """Raw inputs and other attributes of some test samples."""
    test = data.datasets[data.test_names[0]]
    rows = torch.arange(min(most, len(test)))
    raw = test.x[rows] if _scaling(data) is not None else test.inputs(rows)
    return raw.float(), test.a[rows, 1:].clamp_min(0)


@torch.no_grad()
def _difference(file: Path, predictor: nn.Module, x: Tensor, others: Tensor) -> float:
    """Largest difference of probabilities, also for another number of rows."""
    read = torch.export.load(file).module()
    parts = [(x, others), (x[:3], others[:3])]
    return max(float((read(*part) - predictor(*part)).abs().max()) for part in parts)
