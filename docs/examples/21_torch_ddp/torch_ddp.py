#!/usr/bin/env python3
"""Trains a small network under PyTorch's DistributedDataParallel.

usage: torchrun --nproc-per-node=2 torch_ddp.py [tutti|gloo]"""
import sys

import torch
import torch.distributed as dist
import tutti  # Registers the backend.
from torch.nn.parallel import DistributedDataParallel as DDP


class SimpleModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(10, 1)

    def forward(self, x):
        return self.linear(x)


dist.init_process_group(backend=sys.argv[1] if len(sys.argv) > 1 else "tutti")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(1)
model = DDP(SimpleModel())
criterion = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

data = torch.randn(1000, 10)
answers = data.sum(1, keepdim=True)
for step in range(50):
    rows = slice(20 * step, 20 * step + 20)
    optimizer.zero_grad()
    # Every rank takes its part of the batch, and DDP averages the gradients.
    loss = criterion(model(data[rows].chunk(size)[rank]), answers[rows].chunk(size)[rank])
    loss.backward()
    optimizer.step()
    mean = tutti.distributed.sync_ddp(loss.detach(), reduce_op="mean")  # In place.
    if rank == 0 and step % 10 == 9:
        print(f"step {step + 1}: loss {mean.item():.4f}")

dist.destroy_process_group()
