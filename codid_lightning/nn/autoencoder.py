"""A convolutional autoencoder whose decoder gets a condition, so that the latent need not contain it.

The paper has none. The latent is a map with a quarter of the input's resolution. The condition is added to it as
constant channels. This assumes that the condition changes the input locally.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Likelihood = Literal["bernoulli", "gaussian"]
Shape = tuple[int, ...]

CHANNELS = 8  # channels of the latent map
_HALVINGS = 2  # how often the encoder halves the resolution


class ConditionalAutoencoder(nn.Module):
    """Encodes samples without their condition, and decodes them under any condition.

    Images (C, H, W) and series (C, T) of any size are convolved. Other inputs go through dense layers.

    Args:
        input_shape: Shape of one sample.
        condition_size: Width V of the condition.
        likelihood: Of x given latent and condition. Default: `bernoulli` for images, whose values are in [0, 1], and
            `gaussian` of unknown variance for other inputs.
        channels: Channels of the latent map, or dimensions of the latent of inputs that are not convolved.
    """

    def __init__(
        self, input_shape: Shape, condition_size: int, likelihood: Likelihood | None = None, channels: int = CHANNELS
    ) -> None:
        super().__init__()
        self.input_shape, self.channels = tuple(input_shape), channels
        self.likelihood: Likelihood = likelihood or ("bernoulli" if len(input_shape) == 3 else "gaussian")
        self.encoder = spatial_encoder(self.input_shape, 2 * channels)
        self.decoder = spatial_decoder(channels + condition_size, self.input_shape)
        if not is_spatial(self.input_shape):
            self.encoder.insert(0, nn.Flatten())
        if len(self.input_shape) == 3:
            self.to(memory_format=torch.channels_last)  # half the time on a CPU

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the latent, (B, channels, *grid) each, given x (B, *input_shape)."""
        mean, log_variance = self.encoder(padded(x) if is_spatial(self.input_shape) else x).chunk(2, dim=1)
        return mean, log_variance

    def decode(self, z: Tensor, condition: Tensor) -> Tensor:
        """Decoded x (B, *input_shape) of a latent and a condition (B, V); logits if the likelihood is Bernoulli."""
        planes = condition.to(z).view(*condition.shape, *(1 for _ in z.shape[2:])).expand(-1, -1, *z.shape[2:])
        return cropped(self.decoder(torch.cat([z, planes], dim=1)), self.input_shape)

    def render(self, z: Tensor, condition: Tensor) -> Tensor:
        """The expected x of a latent and a condition."""
        x = self.decode(z, condition)
        return x.sigmoid() if self.likelihood == "bernoulli" else x

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Samples x under another condition, with their own latent."""
        return self.render(self.encode(x)[0], condition)

    def losses(self, x: Tensor, condition: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reconstruction error and KL divergence of each sample, both (B,), summed over dimensions.

        Args:
            x: Samples (B, *input_shape).
            condition: Their condition (B, V).
            noise: Standard normal noise in the shape of the latent.
        """
        mean, log_variance = self.encode(x)
        decoded = self.decode(mean + (log_variance / 2).exp() * noise, condition)
        divergence = standard_divergence(mean, log_variance).flatten(1).sum(1)
        if self.likelihood == "bernoulli":
            return F.binary_cross_entropy_with_logits(decoded, x, reduction="none").flatten(1).sum(1), divergence
        return (decoded - x).square().flatten(1).sum(1), divergence

    @property
    def latent_shape(self) -> Shape:
        """Shape of one sample's latent."""
        return latent_shape(self.input_shape, self.channels)


def standard_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL divergence of Gaussians from the standard one, element by element."""
    return (mean.square() + log_variance.exp() - 1 - log_variance) / 2


# -------------------------------------------------------------------------------------------------------------- layers


def is_spatial(shape: Shape) -> bool:
    """Whether samples of this shape are images (C, H, W) or series (C, T), which are convolved."""
    return len(shape) in (2, 3)


def grid_of(shape: Shape) -> Shape:
    """Height and width of an image, length of a series, nothing for other samples."""
    return shape[1:] if is_spatial(shape) else ()


def latent_shape(shape: Shape, channels: int = CHANNELS) -> Shape:
    """Shape of the latent map of samples of this shape."""
    return (channels, *(ceil(size / 2**_HALVINGS) for size in grid_of(shape)))


def spatial_encoder(shape: Shape, width: int) -> nn.Sequential:
    """Halve the resolution twice: (B, C, *positions) to (B, width, *grid)."""
    if not is_spatial(shape):
        return nn.Sequential(nn.Linear(prod(shape), 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, width))
    convolution, _ = _convolutions(shape)
    return nn.Sequential(
        convolution(shape[0], 16, 4, 2, 1),
        nn.ReLU(),
        convolution(16, 32, 4, 2, 1),
        nn.ReLU(),
        convolution(32, width, 1),
    )


def spatial_decoder(width: int, shape: Shape) -> nn.Sequential:
    """Double the resolution twice: (B, width, *grid) to (B, C, *positions), which are multiples of four."""
    if not is_spatial(shape):
        return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, prod(shape)))
    convolution, transposed = _convolutions(shape)
    return nn.Sequential(
        convolution(width, 32, 3, 1, 1),
        nn.ReLU(),
        transposed(32, 16, 4, 2, 1),
        nn.ReLU(),
        transposed(16, 16, 4, 2, 1),
        nn.ReLU(),
        convolution(16, shape[0], 1),
    )


def _convolutions(shape: Shape) -> tuple[Callable[..., nn.Module], Callable[..., nn.Module]]:
    return (nn.Conv1d, nn.ConvTranspose1d) if len(shape) == 2 else (nn.Conv2d, nn.ConvTranspose2d)


def padded(x: Tensor) -> Tensor:
    """Samples x (B, C, *positions), extended to multiples of four by repeating the last positions."""
    missing = [-size % 2**_HALVINGS for size in x.shape[2:]]
    if not any(missing):
        return x
    return F.pad(x, [side for m in reversed(missing) for side in (0, m)], mode="replicate")


def cropped(x: Tensor, shape: Shape) -> Tensor:
    """The leading positions of x (B, C, *positions), in the given shape of a sample."""
    for dim, size in enumerate(grid_of(shape), start=2):
        x = x.narrow(dim, 0, size)
    return x.reshape(len(x), *shape)
