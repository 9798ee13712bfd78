"""`python -m braidfs.data index ROOT -o FILE`: writes an index file, in containers that have no
command braidfs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .index import Index


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 1 with a line on the standard error."""
    options = _parser().parse_args(words)
    try:
        index = Index.scan(options.root, options.suffix, threads=options.threads)
        index.save(options.output)
    except OSError as error:
        print(f"braidfs.data: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(summary(index, options.output))  # noqa: T201
    return 0


def summary(index: Index, file: str) -> str:
    """What was written, in a line."""
    files, classes = len(index), len(index.classes)
    return (
        f"{file}: {files:,} files in {len(index.folder_inodes):,} folders, {classes:,} classes, "
        f"{sum(index.sizes):,} bytes; the index has {Path(file).stat().st_size:,}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m braidfs.data", description="Data sets of many files."
    )
    verbs = parser.add_subparsers(required=True)
    index = verbs.add_parser("index", help="list a tree's files, for braidfs.data.Index.load")
    index.add_argument("root", help="the folder below which the files are")
    index.add_argument("-o", "--output", required=True, metavar="FILE", help="the index file")
    index.add_argument(
        "--suffix",
        action="append",
        default=[],
        metavar="END",
        help="only files whose names end with this, in any case, as .jpg; may be repeated",
    )
    index.add_argument(
        "--threads",
        type=_threads,
        default=16,
        metavar="N",
        help="how many folders are listed at a time (16)",
    )
    return parser


def _threads(word: str) -> int:
    number = int(word)
    if not 1 <= number <= 256:
        raise argparse.ArgumentTypeError("threads is from 1 to 256")
    return number


if __name__ == "__main__":
    sys.exit(main())
