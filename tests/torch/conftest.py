"""Nothing of these tests needs a mount: they run in folders of pytest, on the local disk."""

import importlib.util

import pytest


def pytest_ignore_collect() -> bool | None:
    """Without torch there is nothing here to import; tests/integration/test_torch.py says where
    these tests run."""
    return None if importlib.util.find_spec("torch") else True


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    import torch  # noqa: PLC0415

    torch.manual_seed(20)
    torch.set_num_threads(1)
