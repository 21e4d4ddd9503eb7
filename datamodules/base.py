"""The content of a batch, and loaders that are fast, divided over ranks and exactly resumable."""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, TypedDict

import torch
from lightning import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FACTS = ("input_shape", "attribute_sizes", "test_names", "test_attributes")  # what a method is told about its data


class DataError(ValueError):
    """The data cannot be used; the message names the file or config key and the fix."""


class Batch(TypedDict):
    """The batch of every loader, and the input of every method."""

    x: Tensor  # (B, *input_shape)
    a: Tensor  # (B, Q) attribute labels; column 0 is the attribute to disentangle
    mode: Tensor  # (B, Q) true mode of each attribute, counted over all its values; -1 where unknown
    index: Tensor  # (B,) position in the split


class AttributeDataset(Dataset[Batch]):
    """Tensors with their attributes, indexed by batches.

    Args:
        x: Inputs, (N, *input_shape); any dtype if `transform` converts it to floats.
        a: Attribute labels, (N, Q).
        mode: True modes, (N, Q); None if they are unknown.
        transform: Converts an indexed batch of `x` to model inputs, so that large sets can be stored as bytes.
        rows: Rows of the samples in the user's file, (N,); None for data sets that are not one file.
    """

    def __init__(
        self,
        x: Tensor,
        a: Tensor,
        mode: Tensor | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
        rows: Tensor | None = None,
    ) -> None:
        self.x = x
        self.a = a.long()
        self.mode = torch.full_like(self.a, -1) if mode is None else mode.long()
        self.transform, self.rows = transform, rows

    def __len__(self) -> int:
        return len(self.a)

    def __getitem__(self, indices: Any) -> Batch:
        index = torch.as_tensor(indices)
        x = self.inputs(index)
        return Batch(x=x, a=self.a.index_select(0, index), mode=self.mode.index_select(0, index), index=index)

    def inputs(self, index: Tensor) -> Tensor:
        """Model inputs of the samples `index`; override it to compose inputs for each batch."""
        x = self.x.index_select(0, index)  # `x[index]` takes almost twice as long
        return x if self.transform is None else self.transform(x)

    def subset(self, keep: Tensor) -> AttributeDataset:
        """The samples selected by `keep`, indices or a mask."""
        rows = None if self.rows is None else self.rows[keep]
        return AttributeDataset(self.x[keep], self.a[keep], self.mode[keep], self.transform, rows)


class EpochBatches(DistributedSampler[Any]):
    """Index batches whose order is a pure function of (seed, epoch), split over ranks without padding.

    A rank takes every `world`-th sample of a global batch of up to `together` samples, by default `batch_size * world`,
    so that no sample is lost or used twice. The sizes of training batches differ by at most one sample: through
    BatchNorm, a small last batch would disturb the networks at the end of every epoch, just before the evaluation. The
    class derives from `DistributedSampler` so that Lightning neither replaces nor wraps it.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        together: int | None = None,
    ) -> None:
        self.size, self.batch_size, self.shuffle, self.seed = size, batch_size, shuffle, seed
        self.together = together or batch_size * world
        self.rank, self.world = rank, world
        self.epoch = 0
        self.start = 0  # first batch of the next pass, to continue an interrupted epoch; 0 again after that pass

    def __len__(self) -> int:
        return len(self.bounds())

    def __iter__(self) -> Iterator[Tensor]:
        start, self.start = self.start, 0
        order = torch.arange(self.size)
        if self.shuffle:
            order = torch.randperm(self.size, generator=seeded_generator(self.seed, self.epoch))
        for low, high in self.bounds()[start:]:
            yield order[low : high : self.world] if self.shuffle else order[low:high]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order of the next pass."""
        self.epoch = epoch

    def bounds(self) -> list[tuple[int, int]]:
        """First and last position of each of this rank's batches in the order of the epoch."""
        if not self.shuffle:  # evaluation: all samples, contiguous shares
            low, high = (self.size * r // self.world for r in (self.rank, self.rank + 1))
            return [(i, min(i + self.batch_size, high)) for i in range(low, high, self.batch_size)]
        count = -(-self.size // self.together)
        while count > 1 and self.size // count < 2 * self.world:  # too few for BatchNorm on every rank
            count -= 1
        edges = [self.size * i // max(1, count) for i in range(count + 1)]
        return [(low + self.rank, high) for low, high in itertools.pairwise(edges)]


class BatchLoader(DataLoader[Batch]):
    """A loader whose sampler yields whole batches; without worker processes it only indexes the data set."""

    def __iter__(self) -> Any:
        if self.num_workers or self.batch_sampler is not None:
            return super().__iter__()
        return (self.dataset[index] for index in self.sampler)


def derive_seed(*keys: int) -> int:
    """One seed from several integers; seeds of different integers are unrelated."""
    state = 0x9E3779B97F4A7C15
    for key in keys:
        state = ((state ^ (key & 0xFFFFFFFF)) * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D) % 2**63
    return state


def seeded_generator(*keys: int) -> torch.Generator:
    """A generator seeded by several integers."""
    return torch.Generator().manual_seed(derive_seed(*keys))


class AttributeDataModule(LightningDataModule, ABC):
    """Loaders over `AttributeDataset`s. A data set sets the class attributes and implements `build`.

    Args:
        root: Folder of the data, also for downloads.
        batch_size: Samples per device and step.
        num_workers: Loader processes; in-memory sets are fastest with 0.
        seed: Of splits, correlations, noise and order. It is independent of the global seed, so that all methods and
            ranks have the same data.
        on_bad_values: Samples with NaN or infinity raise an error, are dropped, or (`impute`) get 0 for these values
            after scaling.
        global_batch_size: Samples per step of all devices together, in place of `batch_size` for each. The steps are
            then those of one device, whatever the number of devices.
        partition: File with a cell of every validation sample, for accuracy in the worst of these cells: a column
            `cell` in the order of the validation set, see `docs/benchmark.md`. With data of your own, also a column of
            their file.
    """

    title: ClassVar[str]  # the name in tables and figures
    input_shape: tuple[int, ...]
    attribute_names: tuple[str, ...]
    value_names: tuple[tuple[str, ...], ...]  # names of the values of each attribute
    mode_sizes: tuple[tuple[int, ...] | None, ...]  # modes under each value of each attribute, None if unknown
    mode_names: tuple[str, ...] = ()  # names of the modes of the first attribute, if they have names
    test_names: tuple[str, ...] = ("test1", "test2", "test3")
    test_attributes: tuple[int, ...]  # attributes whose test values also occur in training
    groups: ClassVar[int] = 0  # number of leave-one-group-out folds; 0 for other protocols

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        on_bad_values: Literal["error", "drop", "impute"] = "error",
        global_batch_size: int | None = None,
        partition: str | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 2:
            raise DataError(f"data.batch_size is {batch_size}; set it to 2 or more, which BatchNorm needs.")
        self.root, self.batch_size, self.num_workers, self.seed = root, batch_size, num_workers, seed
        self.on_bad_values, self.global_batch_size = on_bad_values, global_batch_size
        self.partition = partition
        self._reference: Tensor | None = None  # read once: the file may change while the run trains
        self.datasets: dict[str, AttributeDataset] = {}

    @property
    def attribute_sizes(self) -> tuple[int, ...]:
        """Number of values of each attribute."""
        return tuple(len(names) for names in self.value_names)

    @property
    def facts(self) -> dict[str, Any]:
        """What a method's constructor takes from the data: `CoDID(**data.facts)`."""
        return {name: getattr(self, name) for name in FACTS}

    @property
    def origin(self) -> str:
        """The place of the data, for messages."""
        return f"the files below {self.root} (data.root)"

    @abstractmethod
    def build(self) -> dict[str, AttributeDataset]:
        """The splits: `train`, `val` and one per test name."""

    def setup(self, stage: str | None = None) -> None:
        """Build and check all splits, once for all stages."""
        if not self.datasets:
            self.datasets = {name: self._checked(name, data) for name, data in self.build().items()}
        if stage == "fit":
            self.reference_cells()  # a file that does not fit is an error before training

    def reference_cells(self) -> Tensor | None:
        """The cell (N,) of every validation sample in the reference partition; None without one."""
        if self.partition is not None and self._reference is None:
            from datamodules.partition import read_partition

            self._reference = read_partition(self.partition, self.datasets["val"])
        return self._reference

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled training batches; an interrupted epoch continues at the batch where it stopped."""
        sampler = self._sampler("train", shuffle=True)
        if self.trainer is not None:
            _continue_epoch(sampler, self.trainer)
        return self._loader("train", sampler)

    def encode_dataloader(self) -> DataLoader[Batch]:
        """This rank's share of the training set in index order, for mode discovery."""
        return self._loader("train", self._sampler("train", shuffle=False))

    def some_batches(self, count: int) -> Iterator[Batch]:
        """This rank's share of up to `count` random training batches; the same in every call."""
        sampler = self._sampler("train", shuffle=True)
        sampler.set_epoch(-1)  # an order that no epoch has
        for index in itertools.islice(sampler, count):
            yield self.datasets["train"][index]

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move the batch, unless the device is the CPU."""
        return batch if device.type == "cpu" else super().transfer_batch_to_device(batch, device, dataloader_idx)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Validation batches, with the correlations of the training set."""
        return self._loader("val", self._sampler("val", shuffle=False))

    def test_dataloader(self) -> list[DataLoader[Batch]]:
        """One loader per test name."""
        return [self._loader(name, self._sampler(name, shuffle=False)) for name in self.test_names]

    def predict_dataloader(self) -> list[DataLoader[Batch]]:
        """The test sets."""
        return self.test_dataloader()

    def state_dict(self) -> dict[str, Any]:
        """Names of attributes and values, and a fingerprint of the training samples."""
        return {
            "attribute_names": list(self.attribute_names),
            "value_names": [list(v) for v in self.value_names],
            "trained_on": self._fingerprint(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise if the names differ from the checkpoint's, or if training would continue with other samples."""
        self.check_same_labels(state_dict)
        fitting = self.trainer is not None and self.trainer.state.fn == TrainerFn.FITTING
        trained_on = self._fingerprint()
        if fitting and state_dict.get("trained_on", trained_on) != trained_on:
            raise DataError(
                f"{type(self).__name__}: the training samples are not those the checkpoint was trained on; restore the "
                "files below data.root, or start a new run."
            )

    def check_same_labels(self, state_dict: dict[str, Any]) -> None:
        """Raise if the names of attributes or values differ from those of a checkpoint's data."""
        own = AttributeDataModule.state_dict(self)  # a data set may keep more
        del own["trained_on"]
        kept = {key: state_dict.get(key) for key in own}
        if kept != own:
            raise DataError(
                f"The checkpoint was trained on attributes {kept}, the data has {own}: "
                "point `data` at the data set of the checkpoint."
            )

    def checksum(self) -> str:
        """A hash of every input, label and mode of all splits, and of the names of the values."""
        names = (self.attribute_names, self.value_names, self.mode_names)
        digest = hashlib.sha256(repr(names).encode())
        for split, data in sorted(self.datasets.items()):
            digest.update(split.encode())
            for tensor in (data.x, data.a, data.mode):
                digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                for part in tensor.split(4096):  # a copy of a whole set may not fit
                    digest.update(part.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def _fingerprint(self) -> str | None:
        """A hash of all labels and of a hundred inputs of the training set."""
        if "train" not in self.datasets:
            return None
        data = self.datasets["train"]
        some = torch.linspace(0, len(data) - 1, 100).long()
        digest = hashlib.sha256(data.a.cpu().numpy().tobytes())
        digest.update(data.x[some].contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()

    def _loader(self, split: str, sampler: EpochBatches) -> DataLoader[Batch]:
        return BatchLoader(
            dataset=self.datasets[split],
            sampler=sampler,
            batch_size=None,  # the sampler yields whole batches: one tensor index instead of B and a collate
            collate_fn=_as_it_is,
            num_workers=self.num_workers,
            persistent_workers=False,
        )

    def _sampler(self, split: str, shuffle: bool) -> EpochBatches:
        rank, world = (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        size = len(self.datasets[split])
        together = self.global_batch_size
        if together is not None and together < 2 * world:
            raise DataError(
                f"data.global_batch_size is {together} for {world} devices; set it to {2 * world} or more: BatchNorm "
                "needs two samples on each."
            )
        own = self.batch_size if together is None else -(-together // world)
        return EpochBatches(size, own, shuffle=shuffle, seed=self.seed, rank=rank, world=world, together=together)

    def _checked(self, split: str, data: AttributeDataset) -> AttributeDataset:
        name = type(self).__name__
        if not len(data):
            raise DataError(f"{name}: the split `{split}` is empty; check {self.origin} and the split arguments.")
        shape = tuple(data[[0]]["x"].shape[1:])
        if shape != tuple(self.input_shape):
            raise DataError(f"{name}: `{split}` has samples of shape {shape}, expected {self.input_shape}.")
        labelled = self.test_attributes if split in self.test_names else range(len(self.attribute_sizes))
        for q in labelled:  # rows to predict may lack the others
            size = self.attribute_sizes[q]
            low, high = int(data.a[:, q].min()), int(data.a[:, q].max())
            if low < 0 or high >= size:
                raise DataError(
                    f"{name}: `{split}` has {self.attribute_names[q]} labels {low}..{high}, expected 0..{size - 1}."
                )
        if split == "train":
            self._check_values(data)
        return self._finite(split, data) if data.x.is_floating_point() else data

    def _check_values(self, data: AttributeDataset) -> None:
        counts = data.a[:, 0].bincount(minlength=self.attribute_sizes[0])
        missing = [name for name, n in zip(self.value_names[0], counts.tolist(), strict=True) if n == 0]
        if missing:
            raise DataError(
                f"{type(self).__name__}: no training sample has {self.attribute_names[0]} = {', '.join(missing)}; "
                f"every value of the first attribute must occur in training. Check {self.origin}."
            )

    def place_of_bad_values(self, x: Tensor) -> str:
        """Where NaN and infinity are in inputs x (B, ...), for a message, such as ` in the array x`."""
        return ""

    def _finite(self, split: str, data: AttributeDataset) -> AttributeDataset:
        if torch.isfinite(data.x.sum()):  # a finite sum is a fast check
            return data
        bad = ~torch.isfinite(data.x).flatten(1).all(1)
        if not bad.any():
            return data
        if self.on_bad_values == "drop":
            return data.subset(~bad)
        if self.on_bad_values == "impute":
            if data.transform is None:
                data.x = data.x.nan_to_num(0.0, 0.0, 0.0)
            else:
                data.transform = partial(_imputed, data.transform)
            return data
        raise DataError(
            f"{type(self).__name__}: {int(bad.sum())} of {len(data)} samples of `{split}` hold NaN or infinity"
            f"{self.place_of_bad_values(data.x[bad])} (first {_first(data, bad)}, counted from 0); clean "
            f"{self.origin}, or set data.on_bad_values to `drop` or `impute`."
        )


def _as_it_is(batch: Any) -> Any:
    """Return the batch as it is: the data set has already put it together."""
    return batch


def _imputed(transform: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return transform(x).nan_to_num(0.0, 0.0, 0.0)


def _first(data: AttributeDataset, bad: Tensor) -> str:
    """The first few bad samples: rows of the user's file, or indices of the split."""
    found = bad.nonzero().flatten()[:5]
    return f"indices {found.tolist()}" if data.rows is None else f"rows {data.rows[found].tolist()}"


def _continue_epoch(sampler: EpochBatches, trainer: Any) -> None:
    """Set the sampler to the next epoch and batch of a restored fit loop.

    Lightning creates the loader (and, with workers, its iterator) before it sets the sampler's epoch of a restored run.
    So the epoch is read from the progress of the loop.
    """
    loop = trainer.fit_loop
    epoch, batches = loop.epoch_progress.current.processed, loop.epoch_loop.batch_progress
    if loop.restarting:
        if batches.is_last_batch:
            epoch += 1
        else:
            sampler.start = batches.current.ready
    sampler.set_epoch(epoch)


def split_indices(size: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """A random partition of `range(size)`: the rest and a share of `fraction`, both in increasing order."""
    order = torch.randperm(size, generator=seeded_generator(seed))
    share = round(size * fraction)
    return order[share:].sort().values, order[:share].sort().values


def stack_columns(columns: Sequence[Tensor]) -> Tensor:
    """Label columns as one tensor, (N, Q)."""
    return torch.stack([c.long() for c in columns], dim=1)
