"""Mode sources: the features that are clustered to find modes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from codid_lightning.methods.codid.parts.base import Part
from codid_lightning.methods.codid.parts.experts import judge
from codid_lightning.methods.codid.parts.prior import PriorInLogits
from codid_lightning.methods.codid.parts.propensity import propensity
from codid_lightning.metrics.information import joint_labels

if TYPE_CHECKING:
    from codid_lightning.methods.codid.module import CoDID


@dataclass(frozen=True)
class ModeSource(Part, ABC):
    """The features that are clustered to find modes.

    By default these are the representations z_q, the result of `representations`. A source with other features
    implements `content`, which is computed for each sample, and `features`, which are computed from all contents.
    """

    @abstractmethod
    def representations(self, codid: CoDID, x: Tensor) -> Tensor:
        """Representations (B, Q, d) of samples x (B, ...), in which the means of clusters are measured."""

    def content(self, codid: CoDID, x: Tensor) -> Tensor | None:
        """What `features` needs of samples x (B, ...), as (B, p); None to cluster their representations."""
        return None

    def features(self, content: Tensor, a: Tensor, attribute: int) -> Tensor:
        """The features (N, k) to cluster, given content (N, p) and attributes (N, Q) of the training set."""
        return content

    def partition(self, content: Tensor, a: Tensor, attribute: int) -> Tensor | None:
        """Clusters (N,), counted under each value, of a source that finds them itself; None leaves it to the clusterer.

        Args:
            content: Result of `content` for the whole training set, (N, p).
            a: Attributes (N, Q).
            attribute: Position of the attribute whose modes are to be found.
        """
        return None

    def needs_refinement(self, codid: CoDID) -> bool:
        """Whether the features change during training, so that clusters need refinement."""
        return True

    def shows_modes(self, codid: CoDID) -> bool:
        """Whether there is anything to look for modes in. Otherwise every value is one cluster.

        If there is something later, at an epoch at which clusters are refined, these single clusters are divided.
        """
        return True


@dataclass(frozen=True)
class Representation(ModeSource):
    """z_q of real samples. This is the paper's source."""

    def representations(self, codid: CoDID, x: Tensor) -> Tensor:
        """The encoder's output."""
        z: Tensor = codid.encoder(x)
        return z


@dataclass(frozen=True)
class SymmetrisedRepresentation(ModeSource):
    """z_1 averaged over decodings under all values of the other attributes. Ours; needs `model.decoding`.

    Until the gate accepts the autoencoder, these are the representations of real samples.
    """

    def representations(self, codid: CoDID, x: Tensor) -> Tensor:
        """The representations that evaluation uses."""
        z: Tensor = codid(x)
        return z


@dataclass(frozen=True)
class Propensity(SymmetrisedRepresentation):
    """Log-odds of the other attributes given content that does not show them. Ours; needs `model.decoding`.

    Clusters of z_1 tend to follow a_2. The latent of the autoencoder, averaged over all values of a_2, cannot show a_2.
    Its part that predicts a_2 is the mode. The first fit of the mixture searches the number of clusters.

    Args:
        or_representation: Cluster representations of real samples unless the gate accepts the autoencoder. Otherwise
            every value is one cluster then.
    """

    or_representation: bool = True

    def content(self, codid: CoDID, x: Tensor) -> Tensor | None:
        """The content that `model.decoding` finds: of an autoencoder, its latent averaged over decodings."""
        found = codid.counterfactuals
        return codid.content(x) if found is not None and found.accepted else None

    def features(self, content: Tensor, a: Tensor, attribute: int) -> Tensor:
        """Log-odds of all other attributes given the content, by classifiers that did not see the sample."""
        others = [q for q in range(a.shape[1]) if q != attribute]
        return propensity(content, a[:, attribute], a[:, others])

    def needs_refinement(self, codid: CoDID) -> bool:
        """Not after the autoencoder was accepted: it does not change any more."""
        return self.or_representation and (codid.counterfactuals is None or not codid.counterfactuals.accepted)

    def shows_modes(self, codid: CoDID) -> bool:
        """Whether the gate has accepted the autoencoder, or representations may be used instead."""
        return self.or_representation or (codid.counterfactuals is not None and codid.counterfactuals.accepted)


@dataclass(frozen=True)
class ContentPropensity(SymmetrisedRepresentation):
    """Log-odds of the other attributes given content, as the network itself predicts them. Ours.

    Needs `model.decoding` and `model.mode_loss: PriorInLogits`, which on decoded samples predicts pairs of cluster and
    a_2. So the propensity is learnt with the network, without a classifier beside it. The network has to be trained
    first: every value is one cluster, from `model.discovery.start` to the first refinement (`every` epochs later).
    There the mixture searches the number of clusters. If the gate rejects the autoencoder, nothing is searched.

    The content is that of the first attribute; other targets have one cluster under each value.
    """

    def content(self, codid: CoDID, x: Tensor) -> Tensor | None:
        """Logarithms of p(a_2 | content, a_1) for every value of a_1, side by side."""
        if not self.shows_modes(codid):
            return None
        assert isinstance(codid.mode_loss, PriorInLogits)  # noqa: S101
        content = codid.mode_loss.content(codid, codid.target_list[0], codid(x)[:, 0])
        return content.given_value().flatten(1)

    def features(self, content: Tensor, a: Tensor, attribute: int) -> Tensor:
        """Log-odds of a_2 given content and the sample's a_1: one column for two values of a_2, else one per value."""
        if attribute != 0:
            return torch.zeros_like(content[:, :1])
        values = int(a[:, 0].max()) + 1  # all of them occur, or they could not be clustered
        logs = content.view(len(content), values, -1)[torch.arange(len(a), device=a.device), a[:, 0]]
        return logs[:, 1:] - logs[:, :1] if logs.shape[1] == 2 else logs - logs.mean(1, keepdim=True)

    def needs_refinement(self, codid: CoDID) -> bool:
        """As soon as the network predicts the other attributes from content."""
        return self.shows_modes(codid)

    def shows_modes(self, codid: CoDID) -> bool:
        """Whether the network predicts the other attributes from content: clusters exist, and samples are decoded."""
        target = codid.target_list[0]
        if not isinstance(codid.mode_loss, PriorInLogits) or target.attribute != 0 or not target.ready:
            return False
        return codid.sees_content(target) and codid.mode_loss.predicts_others(target)


@dataclass(frozen=True)
class Experts(SymmetrisedRepresentation):
    """The values of a_2 that prefer samples, as judged by experts within a_2. Ours; needs no autoencoder.

    A classifier of a_1 that learns from one value of a_2 only is wrong, out of fold, about samples whose mode is rare
    there. The cluster of a sample is its own a_2, or the value of a_2 that prefers its mode if the expert was wrong:
    with more than two values of a_2 the one whose expert is surest of the sample's a_1. Several other attributes count
    as one attribute with all their combinations. No clusterer is used, and clusters are not refined.

    Args:
        sign_test: Leave every value one cluster unless the same samples are common under other values of a_2, as they
            are under a hidden correlation: the area under the ROC curve of flags learnt there is less than 0.5.
    """

    sign_test: bool = True

    def content(self, codid: CoDID, x: Tensor) -> Tensor:
        """The samples; of series the logarithm of the spectrum."""
        return (torch.fft.rfft(x.float()).abs().log1p() if x.ndim == 3 else x).flatten(1)

    def partition(self, content: Tensor, a: Tensor, attribute: int) -> Tensor:
        """The value of a_2 that prefers each sample."""
        judged = judge(content, a[:, attribute], joint_labels(*(a[:, q] for q in range(a.shape[1]) if q != attribute)))
        area = "not measurable" if judged.area is None else f"{judged.area:.2f}"
        verdict = "a hidden correlation" if judged.hidden else "no sign of a hidden correlation"
        rank_zero_info(f"Experts: {int(judged.flagged.sum())} of {len(a)} samples flagged, area {area}: {verdict}.")
        return judged.preferred if judged.hidden or not self.sign_test else torch.zeros_like(judged.preferred)

    def needs_refinement(self, codid: CoDID) -> bool:
        """Never: the samples do not change."""
        return False
