"""A rank of the crash test: saves steps until it is killed, or has saved `last`.

python -m tests.integration.checkpoint_rank ROOT PART PARTS ATTEMPT FIRST LAST [STAGING]
"""

import random
import sys

from braidfs.checkpoint import Checkpoints

SIZE = 300_000


def content_of(step: int, attempt: str, part: int) -> bytes:
    return random.Random(f"{step}/{attempt}/{part}").randbytes(SIZE + part * 4097)


def main() -> None:
    root, attempt = sys.argv[1], sys.argv[4]
    part, parts, first, last = (int(sys.argv[number]) for number in (2, 3, 5, 6))
    staging = sys.argv[7] if len(sys.argv) > 7 else None
    checkpoints = Checkpoints(root, keep=3, sums=True, staging=staging)
    for step in range(first, last + 1):
        with checkpoints.begin(step, part, parts, attempt) as c, c.file(f"{part}.pt") as file:
            file.write(content_of(step, attempt, part))
        if staging and step != last:
            continue  # training goes on
        print(c.wait(60).number, flush=True)


if __name__ == "__main__":
    main()
