"""Where benchmarks store their results."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from tests.dev.steps import ROOT

RESULTS = ROOT / "results"


def write_results(suite: str, content: dict[str, Any]) -> Path:
    """results/SUITE-TIME.json: the content, and a description of the machine."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{suite}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    machine = {"kernel": platform.release(), "cores": os.cpu_count()}
    path.write_text(json.dumps({"machine": machine, **content}, indent=1) + "\n")
    return path
