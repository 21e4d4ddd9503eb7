"""Image networks of torchvision and timm, untrained, with the weights that their libraries offer, or with a file's."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.error import URLError

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.ops import FrozenBatchNorm2d

from codid_lightning.errors import RunError
from codid_lightning.nn.statistics import BATCH_NORMS

TorchvisionName = Literal[
    "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "resnext50_32x4d", "densenet121",
    "efficientnet_b0", "mobilenet_v3_small", "mobilenet_v3_large", "convnext_tiny", "convnext_small", "convnext_base",
    "swin_t", "swin_b", "vit_b_16", "vit_b_32", "vit_l_16",
]  # fmt: skip
TIMM = "timm/"
if TYPE_CHECKING:
    TimmName = str
else:
    from jsonargparse.typing import restricted_string_type

    TimmName = restricted_string_type("TimmName", f"^{TIMM}.+$", docstring="`timm/` and the name of a model of timm.")

DEFAULT = "default"  # the weights that a library offers for a network
Shape = tuple[int, ...]


class ImageNetwork(nn.Module):
    """A network of torchvision or timm with features in place of class scores, and a linear layer on these.

    Inputs are pictures in [0, 1]. With `weights`, they are normalised as the weights expect. The weights are not read
    here: a model that a checkpoint restores needs no file.

    Args:
        name: Of torchvision, or `timm/` and a name of timm.
        shape: Channels, height and width; pictures with one channel are repeated for three.
        width: Dimensions of the output. There is no linear layer if the features have as many.
        weights: `default`, a file, or None.
        freeze: Keep the network and train the linear layer alone.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, shape: Shape, width: int, weights: str | None = None, freeze: bool = False) -> None:
        super().__init__()
        if shape[0] not in (1, 3):
            raise RunError(f"model.backbone `{name}` needs pictures with 1 or 3 channels, the data has {shape[0]}.")
        if freeze and weights is None:
            raise RunError("model.freeze keeps the backbone as it is; set model.weights to `default` or a file.")
        self.name, self.weights, self.size = name, weights, tuple(shape[1:])
        facts = _timm_facts(name) if name.startswith(TIMM) else _torchvision_facts(name)
        self.trained_size = facts.size
        if weights is not None and facts.fixed and self.size != (facts.size, facts.size):
            raise RunError(
                f"The weights of model.backbone `{name}` need pictures of {facts.size} x {facts.size}, the data has "
                f"{self.size[0]} x {self.size[1]}; set data.image_size to {facts.size}."
            )
        self.trunk, features = _timm(name, self.size) if name.startswith(TIMM) else _torchvision(name, self.size)
        normal = weights is not None
        self.register_buffer("mean", torch.tensor(facts.mean if normal else (0.0,) * 3).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(facts.std if normal else (1.0,) * 3).view(3, 1, 1))
        if freeze:
            _freeze(self.trunk.train(False))
        self.frozen = freeze
        self.head = nn.Identity() if width == features and not freeze else nn.Linear(features, width)

    def forward(self, x: Tensor) -> Tensor:
        """Representations (B, width) of pictures (B, channels, height, width)."""
        features: Tensor = self.trunk((x.expand(-1, 3, -1, -1) - self.mean) / self.std)
        z: Tensor = self.head(features.flatten(1))
        return z

    def train(self, mode: bool = True) -> ImageNetwork:
        """Set the mode; a frozen network stays in evaluation, without dropout."""
        super().train(mode)
        if self.frozen:
            self.trunk.train(False)
        return self

    def read(self) -> Mapping[str, Tensor]:
        """The weights that the network starts from; empty without any.

        Raises:
            RunError: The file is not there, or there is no network to get them from.
        """
        if self.weights is None:
            return {}
        if max(self.size) < self.trained_size:
            warnings.warn(
                f"The weights of `{self.name}` were trained on pictures of {self.trained_size} x {self.trained_size}; "
                f"the data has {self.size[0]} x {self.size[1]} (data.image_size).",
                stacklevel=2,
            )
        return _offered(self.name) if self.weights == DEFAULT else _of_file(Path(self.weights))

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `read` gave; the weights of a classifier, which is not here, are left out.

        Raises:
            RunError: The weights are of another network.
        """
        own = self.trunk.state_dict()
        kept = {key: value for key, value in state.items() if key in own}
        wrong = [key for key, value in kept.items() if value.shape != own[key].shape]
        missing = [key for key in own if key not in kept and not key.endswith("num_batches_tracked")]
        if missing or wrong:
            raise RunError(
                f"model.weights {self.weights} are not of model.backbone `{self.name}`: {len(missing)} of "
                f"{len(own)} tensors are missing, {len(wrong)} have another shape; the first is {(missing + wrong)[0]}."
            )
        self.trunk.load_state_dict(kept, strict=False)


class _Facts:
    """What weights expect of pictures.

    Args:
        mean: Of every channel.
        std: Of every channel.
        size: Height and width in training.
        fixed: Whether other sizes are impossible.
    """

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], size: int, fixed: bool) -> None:
        self.mean, self.std, self.size, self.fixed = mean, std, size, fixed


def _torchvision_facts(name: str) -> _Facts:
    preset = models.get_model_weights(name).DEFAULT.transforms()
    return _Facts(tuple(preset.mean), tuple(preset.std), int(preset.crop_size[0]), name.startswith("vit"))


def _torchvision(name: str, size: tuple[int, ...]) -> tuple[nn.Module, int]:
    """The network without its last linear layer, and the width of its features."""
    options: dict[str, Any] = {"weights": None}
    if name.startswith("vit"):
        patch = int(name.rpartition("_")[2])
        if size[0] != size[1] or size[0] % patch:
            raise RunError(
                f"model.backbone `{name}` needs square pictures with a side that {patch} divides, the data has "
                f"{size[0]} x {size[1]}; set data.image_size."
            )
        options["image_size"] = size[0]
    network = models.get_model(name, **options)
    place, last = [(key, module) for key, module in network.named_modules() if isinstance(module, nn.Linear)][-1]
    parent, _, own = place.rpartition(".")
    setattr(network.get_submodule(parent), own, nn.Identity())
    return network, last.in_features


def _library() -> Any:
    try:
        return import_module("timm")
    except ImportError as error:
        raise RunError("model.backbone `timm/...` needs timm: pip install 'codid-lightning[timm]'.") from error


def _timm_facts(name: str) -> _Facts:
    config = _timm_config(name)
    fixed = bool(config.get("fixed_input_size", False))
    return _Facts(tuple(config["mean"]), tuple(config["std"]), int(config["input_size"][-1]), fixed)


def _timm_config(name: str) -> Mapping[str, Any]:
    found = _library().get_pretrained_cfg(name.removeprefix(TIMM))
    if found is None:
        raise RunError(f"model.backbone is {name}, but timm has no pretrained model of this name.")
    config: Mapping[str, Any] = found.to_dict()
    return config


def _timm(name: str, size: tuple[int, ...]) -> tuple[nn.Module, int]:
    options = {"img_size": size} if _timm_config(name).get("fixed_input_size") else {}
    network = _library().create_model(name.removeprefix(TIMM), pretrained=False, num_classes=0, **options)
    return network, int(network.num_features if not hasattr(network, "head_hidden_size") else network.head_hidden_size)


def _offered(name: str) -> Mapping[str, Tensor]:
    """The weights that a library offers, from its cache or the network."""
    advice = "set model.weights to a file with a state dict, or load them once on a machine with network"
    if name.startswith(TIMM):
        try:
            network = _library().create_model(name.removeprefix(TIMM), pretrained=True, num_classes=0)
        except Exception as error:  # timm's loader raises errors of several libraries
            raise RunError(f"The weights of `{name}` could not be loaded ({_reason(error)}): {advice}.") from error
        state: Mapping[str, Tensor] = network.state_dict()
        return state
    entry: Any = models.get_model_weights(name).DEFAULT
    try:
        loaded: Mapping[str, Tensor] = entry.get_state_dict(progress=False, check_hash=True)
    except (URLError, OSError, RuntimeError) as error:
        raise RunError(f"The weights at {entry.url} could not be loaded ({_reason(error)}): {advice}.") from error
    return loaded


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _of_file(path: Path) -> Mapping[str, Tensor]:
    """A state dict, also one under the key `state_dict` of a checkpoint; nothing in the file is executed."""
    if not path.is_file():
        raise RunError(f"model.weights is {path}, which is no file; it may also be `{DEFAULT}` or null.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise errors of several types
        raise RunError(f"model.weights {path} holds no state dict ({_reason(error)}).") from error
    state = content.get("state_dict", content) if isinstance(content, Mapping) else {}
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise RunError(f"model.weights {path} holds no state dict.")
    return dict(state)


def _freeze(network: nn.Module) -> None:
    """Make constants of all parameters, and of BatchNorm its running statistics.

    Constants are buffers: optimizers, virtual steps and gradients between devices then need to know nothing of them.
    """
    for name, child in list(network.named_children()):
        if type(child) is nn.BatchNorm2d:  # timm's subclasses have an activation, too
            constant = FrozenBatchNorm2d(child.num_features, child.eps)
            constant.load_state_dict(child.state_dict(), strict=False)
            setattr(network, name, constant)
        else:
            _freeze(child)
    if isinstance(network, BATCH_NORMS):
        network.track_running_stats = False  # in evaluation, these are used all the same
    for name, parameter in list(network.named_parameters(recurse=False)):
        delattr(network, name)
        network.register_buffer(name, parameter.detach())
