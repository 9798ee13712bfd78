"""States to save, of every kind of tensor that a file of torch can have, and their comparison."""

from typing import Any

import torch

EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    *EIGHT_BITS,
]


def of_dtype(dtype: Any, *shape: int) -> Any:
    """Values of which no two that are near each other are the same, for most dtypes."""
    if dtype == torch.bool or not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0, 2 if dtype == torch.bool else 127, shape).to(dtype)
    if dtype.is_complex:
        return torch.randn(*shape, dtype=dtype)
    return torch.randn(*shape).to(dtype)


def tensors() -> dict[str, Any]:
    """By the name of what is special about it."""
    base = torch.randn(40, 30)
    return {
        **{str(dtype): of_dtype(dtype, 37, 11) for dtype in DTYPES},
        "large": torch.randn(700, 1000),
        "large column order": torch.randn(500, 400).t(),
        "no dimensions": torch.tensor(3.5),
        "one element": torch.ones(1, 1, 1),
        "empty": torch.empty(0),
        "empty in the middle": torch.empty(3, 0, 2),
        "parameter": torch.nn.Parameter(torch.randn(5)),
        "transposed": torch.randn(13, 17).t(),
        "permuted": torch.randn(3, 4, 5).permute(2, 0, 1),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "rows of a larger one": base[3:9],
        "columns of a larger one": base[:, 4:7],
        "every second": torch.randn(31)[::2],
        "expanded": torch.randn(4, 1).expand(4, 6),
        "conjugated": torch.randn(9, dtype=torch.complex64).conj(),
        "negated": torch.randn(9, dtype=torch.complex64).conj().imag,
        "flat part": torch.randn(1000)[300:700],
    }


def state() -> dict[str, Any]:
    """Nested, and with values that are no tensors."""
    return {
        "model": tensors(),
        "optimizer": {"step": 7, "groups": [{"lr": 0.1, "betas": (0.9, 0.95)}, torch.ones(3)]},
        "name": "a state",
        "nothing": None,
    }


def blank(one: Any) -> Any:
    """The same structure, without the values."""
    if isinstance(one, torch.Tensor):
        return torch.zeros(one.shape, dtype=one.dtype)
    if isinstance(one, dict):
        return {key: blank(value) for key, value in one.items()}
    if isinstance(one, list | tuple):
        return type(one)(blank(value) for value in one)
    return 0 if isinstance(one, int | float) else one


def raw(tensor: Any) -> bytes:
    """The bytes of its elements in order; equal bytes are equal values, NaN and -0.0 included."""
    plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    copy = torch.empty(plain.shape, dtype=plain.dtype).copy_(plain)
    return bytes(copy.view(torch.uint8).tolist()) if copy.numel() else b""


def same(got: Any, wanted: Any, name: str = "") -> None:
    """Asserts that two states are equal, tensors byte by byte."""
    if isinstance(wanted, torch.Tensor):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
        assert _equal(got, wanted), name
    elif isinstance(wanted, dict):
        assert list(got) == list(wanted), name
        for key, value in wanted.items():
            same(got[key], value, f"{name}.{key}")
    elif isinstance(wanted, list | tuple):
        assert len(got) == len(wanted), name
        for number, (a, b) in enumerate(zip(got, wanted, strict=True)):
            same(a, b, f"{name}.{number}")
    else:
        assert got == wanted, name


def _equal(got: Any, wanted: Any) -> bool:
    if wanted.numel() > 10_000:
        return bool(torch.equal(got, wanted))
    return raw(got) == raw(wanted)
