"""Tests that run inside the guest with Soft-RoCE (./dev rdma); elsewhere they are skipped."""
