"""Tests that run inside the guest with Soft-RoCE (./dev rdma); elsewhere they skip themselves."""
