"""What PyTorch builds on a process group, over the backend "tutti" on CPU: functional collectives, DeviceMesh, DTensor,
FSDP2, tensor parallelism, distributed checkpoints, ZeroRedundancyOptimizer and DDP's comm hooks. The results are those
of one process.

usage: frameworks_test.py [-v] [TEST...]; TUTTI_BACKEND names the transport. Ranks are processes forked here."""
import copy
import os
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from calls_test import equal, run_ranks

close = torch.testing.assert_close


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def batch(size):
    """[2 * size, 6]: two rows for each rank."""
    return torch.arange(12.0 * size).reshape(2 * size, 6).sin()


def trained_alone(size, steps=3, make_optimizer=None):
    model = network()
    optimizer = (make_optimizer or (lambda p: torch.optim.SGD(p, lr=0.1)))(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch(size)).square().mean().backward()
        optimizer.step()
    return model


def train(model, optimizer, rank, size, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch(size)[2 * rank:2 * rank + 2]).square().mean().backward()
        optimizer.step()


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compare(model, expected, **tolerance):
    for (name, got), want in zip(model.state_dict().items(), expected.state_dict().values(), strict=True):
        close(whole(got), want, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


class Frameworks(unittest.TestCase):
    def on_ranks(self, body, sizes=(2, 3)):
        for size in sizes:
            with self.subTest(size=size):
                run_ranks(size, body, timeout=120, group_timeout=60)

    def test_functional_collectives(self):
        def body(rank, size):
            mine = torch.arange(size * 2.0) + 10 * rank
            every = torch.stack([torch.arange(size * 2.0) + 10 * r for r in range(size)])
            group = dist.group.WORLD
            equal(functional.all_reduce(mine, "sum", group) + 0, every.sum(0), "all_reduce")
            equal(functional.all_reduce(mine, "avg", group) + 0, every.mean(0), "all_reduce of avg")
            equal(functional.broadcast(mine, size - 1, group) + 0, every[-1], "broadcast")
            equal(functional.all_gather_tensor(mine, 0, group) + 0, every.flatten(), "all_gather_tensor")
            block = slice(2 * rank, 2 * rank + 2)
            equal(functional.reduce_scatter_tensor(mine, "sum", 0, group) + 0, every.sum(0)[block], "reduce_scatter_tensor")
            equal(functional.all_to_all_single(mine, None, None, group) + 0, every[:, block].flatten(), "all_to_all_single")
            both = functional.all_reduce_coalesced([mine, mine * 2], "sum", group)
            equal(both[1] + 0, every.sum(0) * 2, "all_reduce_coalesced")
            both = functional.all_gather_into_tensor_coalesced([mine, mine + 1], group)
            equal(both[1] + 0, every.flatten() + 1, "all_gather_into_tensor_coalesced")
            both = functional.reduce_scatter_tensor_coalesced([mine, mine * 3], "sum", [0, 0], group)
            equal(both[1] + 0, every.sum(0)[block] * 3, "reduce_scatter_tensor_coalesced")
            leaf = mine.clone().requires_grad_()
            # The product, since torch 2.11 wants a contiguous gradient here, and that of sum() alone is expanded.
            (functional.all_gather_tensor_autograd(leaf, 0, group) * 1).sum().backward()
            equal(leaf.grad, torch.full_like(mine, size), "gradient of all_gather_tensor")
        self.on_ranks(body, sizes=(1, 2, 3))

    def test_device_mesh_and_dtensor(self):
        def body(rank, size):
            mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("rows", "columns"))
            data = torch.arange(24.0).reshape(4, 6)
            placed = distribute_tensor(data, mesh, [Shard(0), Replicate()])
            equal(placed.to_local(), data.chunk(2)[mesh.get_local_rank("rows")])
            equal(placed.redistribute(placements=[Shard(1), Replicate()]).full_tensor(), data)
            other = distribute_tensor(data.T.contiguous(), mesh, [Replicate(), Shard(1)])
            close((placed @ other).full_tensor(), data @ data.T)
            equal(placed.sum().full_tensor(), data.sum())
        self.on_ranks(body, sizes=(2, 4))

    def test_fsdp2_trains_as_one_process(self):
        def body(rank, size):
            mesh = init_device_mesh("cpu", (size,))
            model = network()
            for layer in (model[0], model[2]):
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), rank, size)
            compare(model, trained_alone(size))
        self.on_ranks(body)

    def test_tensor_parallelism(self):
        def body(rank, size):
            mesh = init_device_mesh("cpu", (size,))
            model = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
            expected = network()
            close(model(batch(size)), expected(batch(size)))
            model(batch(size)).square().mean().backward()
            expected(batch(size)).square().mean().backward()
            for got, want in zip(model.parameters(), expected.parameters()):
                close(whole(got.grad), want.grad)
        self.on_ranks(body, sizes=(2,))

    def test_a_checkpoint_is_read_by_another_number_of_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            def save(_, size):
                state = {"data": distribute_tensor(torch.arange(24.0).reshape(12, 2), init_device_mesh("cpu", (size,)), [Shard(0)])}
                checkpoint.save(state, checkpoint_id=folder)

            def load(_, size):
                state = {"data": distribute_tensor(torch.zeros(12, 2), init_device_mesh("cpu", (size,)), [Shard(0)])}
                checkpoint.load(state, checkpoint_id=folder)
                equal(state["data"].full_tensor(), torch.arange(24.0).reshape(12, 2))
            self.on_ranks(save, sizes=(2,))
            self.on_ranks(load, sizes=(3,))

    def test_an_optimizer_without_redundancy(self):
        def body(rank, size):
            model = torch.nn.parallel.DistributedDataParallel(network())
            optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
            train(model, optimizer, rank, size)
            compare(model.module, trained_alone(size, make_optimizer=lambda p: torch.optim.Adam(p, lr=0.01)))
        self.on_ranks(body)

    def test_comm_hooks(self):
        def body(rank, size):
            hooks = {"fp16": (None, default_hooks.fp16_compress_hook, 1e-2), "bf16": (None, default_hooks.bf16_compress_hook, 1e-1),
                     # A matrix of the full rank loses nothing.
                     "PowerSGD": (powerSGD_hook.PowerSGDState(dist.group.WORLD, 8, start_powerSGD_iter=2, min_compression_rate=0),
                                  powerSGD_hook.powerSGD_hook, 1e-3)}
            start = network()
            for name, (state, hook, tolerance) in hooks.items():
                model = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(start))
                model.register_comm_hook(state, hook)
                train(model, torch.optim.SGD(model.parameters(), lr=0.1), rank, size)
                try:
                    compare(model.module, trained_alone(size), rtol=tolerance, atol=tolerance)
                except AssertionError as error:
                    raise AssertionError(f"{name}: {error}") from error
        self.on_ranks(body)


if __name__ == "__main__":
    print("tutti", os.environ.get("TUTTI_BACKEND", "auto"), "under torch", torch.__version__)
    unittest.main()
