"""Checkpoints of PyTorch: torch.distributed.checkpoint (DCP) and single files, faster.

`Writer` and `Reader` are a StorageWriter and a StorageReader of DCP, `save` and `load` stand in for
torch.save and torch.load. All of them keep torch's own format of files, which stock readers read;
what is faster is that the bytes go between the tensors' memory and the file without a copy, by
threads, and that no CRC-32 is computed. docs/train/pytorch-checkpoints.md shows how to use them.
"""

from braidfs.checkpoint.damage import DamagedFile
from braidfs.checkpoint.torch_file import load, save
from braidfs.checkpoint.torch_reader import Reader
from braidfs.checkpoint.torch_writer import Writer

__all__ = ["DamagedFile", "Reader", "Writer", "load", "save"]
