"""`codid prepare`: build a data set from sources that cannot be downloaded freely."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser

from datamodules.canine_prepare import SamClip, prepare


def main(args: list[str]) -> int:
    """Parse, prepare, say what could not be prepared."""
    parser = ArgumentParser(prog="codid prepare", description=__doc__, exit_on_error=False)
    commands = parser.add_subcommands()
    canine = ArgumentParser(
        description="Cut dogs out of ImageNet with SAM and CLIP, take backgrounds from Places.", exit_on_error=False
    )
    canine.add_argument("--imagenet", type=Path, required=True, help="Folder with ImageNet's synset folders.")
    canine.add_argument("--places", type=Path, required=True, help="Folder with Places' scene folders.")
    canine.add_argument("--out", type=Path, required=True, help="Folder to write, e.g. data/CanineBG.")
    canine.add_argument("--size", type=int, default=128, help="Side of the pictures written.")
    canine.add_argument("--per_breed", type=int, default=600, help="Photos of each breed, at most.")
    canine.add_argument("--per_scene", type=int, default=1000, help="Backgrounds of each scene, at most.")
    canine.add_class_arguments(SamClip, "segmenter")
    commands.add_subcommand("canine-bg", canine)
    options = parser.parse_args(args)["canine-bg"]
    sizes = (options.size, options.per_breed, options.per_scene)
    report = prepare(options.imagenet, options.places, options.out, SamClip(**options.segmenter), *sizes)
    print(f"{report.prepared} dogs are in {options.out}.")
    if report.failed:
        print(f"{len(report.failed)} photos could not be segmented ({options.out / 'failed.csv'}):")
        print("\n".join(f"  {name}: {reason}" for name, reason in report.failed[:20]))
    return 0 if report.prepared else 1
