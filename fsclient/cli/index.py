"""braidfs index: lists the files of a data set once, for all that train with it."""

from pathlib import Path

import click

from .frame import EXIT_DONE, Command, json_option, show


@click.command(
    "index",
    cls=Command,
    examples=[
        ("braidfs index /data/train -o /data/train.index", "All files of a tree."),
        ("braidfs index /data/train -o train.index --suffix .jpg --suffix .png", "Only pictures."),
    ],
)
@click.argument("root", type=click.Path(file_okay=False))
@click.option(
    "-o",
    "--output",
    "file",
    required=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The index file; it appears whole, in place of an older one.",
)
@click.option(
    "--suffix",
    "suffixes",
    multiple=True,
    metavar="END",
    help="Only files whose names end with this, in any case. May be repeated.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 256),
    default=16,
    show_default=True,
    help="How many folders are listed at a time.",
)
@json_option
def index(root: str, file: str, suffixes: tuple[str, ...], threads: int, as_json: bool) -> int:
    """Write a list of a tree's files, for data sets of braidfs.data.

    Programs that train map it (Index.load), instead of listing the tree before their first batch.
    It has paths below ROOT, sizes, inode numbers and classes: the folders of ROOT. Make it again
    when files came or went; a file that grew or shrank is read as it is.
    """
    from braidfs.data import Index  # noqa: PLC0415  # other verbs start without it
    from braidfs.data.__main__ import summary  # noqa: PLC0415

    found = Index.scan(root, suffixes, threads=threads)
    found.save(file)
    sums = {
        "files": len(found),
        "folders": len(found.folder_inodes),
        "classes": len(found.classes),
        "bytes": sum(found.sizes),
        "index_bytes": Path(file).stat().st_size,
    }
    show(sums, as_json, lambda console: console.print(summary(found, file), markup=False))
    return EXIT_DONE
