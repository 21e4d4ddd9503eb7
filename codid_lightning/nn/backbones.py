"""Encoders, decoders and predictors of the paper's architecture table.

The table lists no activation between the layers of an encoder. With a ReLU after each inner BatchNorm, the paper's BASE
row is reproduced. The last layer of `mlp` is linear, followed by its normalisation.

`har` and `mfd` end in a ReLU, the table's max pooling and a mean over time, so that z >= 0. The table has neither that
ReLU nor the mean. The mean gives vectors of d = 128, the last layer's channels; docs/reproduction_causes.md compares
BASE with and without the ReLU. `resnet18` ends as torchvision's does, for d = 512 in a mean of values >= 0, too.

Other networks for images are those of torchvision and timm (`nn/pretrained.py`). `features` is a linear layer, for
inputs that are the features of a trained network.
"""

from __future__ import annotations

from functools import partial
from math import ceil, prod
from typing import Literal

import torch
from torch import Tensor, nn
from torchvision.models import resnet18

from codid_lightning.nn.autoencoder import latent_shape, spatial_decoder
from codid_lightning.nn.pretrained import ImageNetwork, TimmName, TorchvisionName

Backbone = Literal["auto", "mlp", "har", "mfd", "features"] | TorchvisionName | TimmName
DecoderKind = Literal["convolutional"] | Backbone
Shape = tuple[int, ...]
_SHORTEST, _LONG = 28, 512  # series: what `har` needs at least, and where `mfd` with its longer steps begins


class Encoder(nn.Module):
    """One subnetwork per attribute: x (B, *input_shape) to z (B, Q, d).

    Args:
        backbone: Row of the architecture table; `auto` takes the one that fits the shape.
        input_shape: Shape of one sample.
        num_attributes: Q.
        latent_dim: d.
        variational: Also return the log-variance of each representation.
        weights: Of a network for images, see `ImageNetwork`; `load_weights` reads them.
        freeze: Keep these weights.
    """

    def __init__(
        self,
        backbone: Backbone,
        input_shape: Shape,
        num_attributes: int,
        latent_dim: int,
        variational: bool = False,
        weights: str | None = None,
        freeze: bool = False,
    ) -> None:
        super().__init__()
        width = 2 * latent_dim if variational else latent_dim
        row = fitting(input_shape) if backbone == "auto" else backbone
        _check_shape(row, input_shape)
        table = {"mlp": _mlp, "har": _har, "mfd": _mfd, "features": _linear}
        trained = weights is not None or freeze
        if trained and row in table:
            raise ValueError(f"model.backbone `{row}` has no trained weights; remove model.weights and model.freeze.")
        build = table.get(row) or partial(ImageNetwork, row, weights=weights, freeze=freeze)
        if row == "resnet18" and not trained:
            build = _resnet18
        self.subnetworks = nn.ModuleList(build(input_shape, width) for _ in range(num_attributes))

    def forward(self, x: Tensor) -> Tensor:
        """Representations (B, Q, d), or their mean and log-variance side by side (B, Q, 2d)."""
        return torch.stack([subnetwork(x) for subnetwork in self.subnetworks], dim=1)

    def load_weights(self) -> None:
        """Read the weights that a network for images starts from, if there are any."""
        networks = [network for network in self.subnetworks if isinstance(network, ImageNetwork)]
        state = networks[0].read() if networks else {}
        for network in networks if state else []:
            network.load(state)


class Decoder(nn.Module):
    """All representations together to a reconstruction: z (B, Q, d) to x (B, *input_shape).

    Args:
        kind: Row of the architecture table, `auto` for the one that fits the shape, `convolutional` for the decoder of
            `ConditionalAutoencoder`.
        input_shape: Shape of one sample.
        num_attributes: Q.
        latent_dim: d.
    """

    def __init__(self, kind: DecoderKind, input_shape: Shape, num_attributes: int, latent_dim: int) -> None:
        super().__init__()
        table = {"mlp": _mlp_decoder, "features": _mlp_decoder, "har": _har_decoder, "mfd": _mfd_decoder}
        row = fitting(input_shape) if kind == "auto" else kind
        build = {**table, "convolutional": _convolutional_decoder}.get(row, _image_decoder)
        self.network = build(num_attributes * latent_dim, input_shape)
        self.input_shape = input_shape

    def forward(self, z: Tensor) -> Tensor:
        """Reconstructed inputs (B, *input_shape)."""
        x: Tensor = self.network(z.flatten(1))
        if x.ndim > 2:  # convolutional decoders may return a few positions too many
            for dim, size in enumerate(self.input_shape[1:], start=2):
                x = x.narrow(dim, 0, size)
        return x.reshape(len(z), *self.input_shape)


def fitting(shape: Shape) -> Backbone:
    """The backbone for inputs of a shape: `resnet18` for images, `har` or `mfd` for short or long series, or `mlp`."""
    if len(shape) == 3:
        return "resnet18"
    if len(shape) != 2 or shape[1] < _SHORTEST:
        return "mlp"
    return "har" if shape[1] < _LONG else "mfd"


def _check_shape(backbone: Backbone, shape: Shape) -> None:
    dims = {"mlp": None, "features": None, "har": 2, "mfd": 2}.get(backbone, 3)
    if dims is not None and len(shape) != dims:
        layout = "(channels, height, width)" if dims == 3 else "(channels, length)"
        raise ValueError(
            f"model.backbone `{backbone}` needs inputs of shape {layout}, the data has {shape}; choose another."
        )


def _mlp(shape: Shape, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), 128),
        nn.BatchNorm1d(128),
        nn.ReLU(),
        nn.Linear(128, width),
        nn.BatchNorm1d(width),
    )


def _linear(shape: Shape, width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), width))


def _mlp_decoder(width: int, shape: Shape) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, prod(shape)))


def _resnet18(shape: Shape, width: int) -> nn.Module:
    network = resnet18(weights=None)
    if shape[0] != 3:
        network.conv1 = nn.Conv2d(shape[0], 64, kernel_size=7, stride=2, padding=3, bias=False)
    network.fc = nn.Identity() if width == 512 else nn.Linear(512, width)
    return network  # type: ignore[no-any-return]


def _image_decoder(width: int, shape: Shape) -> nn.Module:
    """Five transposed convolutions, each doubling the side: the mirror of ResNet18's five halvings."""
    channels, height, side = shape
    start = (512, ceil(height / 32), ceil(side / 32))
    layers: list[nn.Module] = [nn.Linear(width, prod(start)), nn.Unflatten(1, start)]
    for inner, outer in ((512, 256), (256, 128), (128, 64), (64, 64)):
        layers += [nn.ConvTranspose2d(inner, outer, 4, 2, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, channels, 4, 2, 1), nn.Sigmoid())


def _convolutional_decoder(width: int, shape: Shape) -> nn.Module:
    """A linear layer to the latent map of `ConditionalAutoencoder`, then its decoder."""
    start = latent_shape(shape)
    layers = [nn.Linear(width, prod(start)), nn.Unflatten(1, start), *spatial_decoder(start[0], shape)]
    return nn.Sequential(*layers, *([nn.Sigmoid()] if len(shape) == 3 else []))


def _conv(inner: int, outer: int, kernel: int, stride: int) -> list[nn.Module]:
    return [nn.Conv1d(inner, outer, kernel, stride), nn.BatchNorm1d(outer), nn.ReLU()]


def _pooled(layers: list[nn.Module], channels: int, width: int) -> nn.Module:
    """Convolutions that end in a ReLU, then the mean over time; the table's last layer has as many channels as d."""
    head: list[nn.Module] = [nn.MaxPool1d(2), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head, *([] if width == channels else [nn.Linear(channels, width)]))


def _har(shape: Shape, width: int) -> nn.Module:
    return _pooled([*_conv(shape[0], 128, 8, 2), *_conv(128, 256, 5, 2), *_conv(256, 128, 3, 1)], 128, width)


def _har_decoder(width: int, shape: Shape) -> nn.Module:
    channels, length = shape
    start = ceil((length + 4) / 4) + 2  # 35 for windows of 128 and 41 for 150, the paper's c_dec
    return nn.Sequential(
        nn.Linear(width, 32 * start),
        nn.BatchNorm1d(32 * start),
        nn.LeakyReLU(0.2),
        nn.Unflatten(1, (32, start)),
        *_upsampled(nn.Conv1d(32, 16, 3), 16),
        *_upsampled(nn.Conv1d(16, 8, 3), 8),
        nn.Conv1d(8, channels, 3, padding=1),
        nn.Tanh(),
    )


def _upsampled(convolution: nn.Module, channels: int) -> list[nn.Module]:
    return [convolution, nn.BatchNorm1d(channels), nn.LeakyReLU(0.2), nn.Upsample(scale_factor=2)]


def _mfd(shape: Shape, width: int) -> nn.Module:
    return _pooled([*_conv(shape[0], 64, 32, 6), *_conv(64, 128, 8, 2), *_conv(128, 128, 8, 2)], 128, width)


def _mfd_decoder(width: int, shape: Shape) -> nn.Module:
    channels, length = shape
    start = ceil(length / 24)  # the three upsamplings multiply by 24: 214 for windows of 5120
    layers: list[nn.Module] = [nn.Linear(width, 128 * start), nn.BatchNorm1d(128 * start), nn.LeakyReLU(0.2)]
    layers.append(nn.Unflatten(1, (128, start)))
    for factor, inner, outer, kernel in ((2, 128, 32, 8), (2, 32, 8, 8), (6, 8, channels, 33)):
        layers += [
            nn.Upsample(scale_factor=factor),
            nn.Conv1d(inner, outer, kernel, padding="same"),
            nn.BatchNorm1d(outer),
            nn.LeakyReLU(0.2),
        ]
    return nn.Sequential(*layers)
