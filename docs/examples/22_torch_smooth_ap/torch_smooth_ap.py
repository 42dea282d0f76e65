#!/usr/bin/env python3
"""Trains with a ranking loss over the rows of all ranks, under PyTorch's DistributedDataParallel.

usage: torchrun --nproc-per-node=W torch_smooth_ap.py"""
import torch
import torch.distributed as dist
import tutti
from torch.nn.parallel import DistributedDataParallel as DDP
from tutti.losses import SmoothAPLoss  # Instead of: from imbalanced_losses import SmoothAPLoss

CLASSES = 4

dist.init_process_group("tutti")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(1)
model = DDP(torch.nn.Linear(16, CLASSES))
loss_fn = SmoothAPLoss(num_classes=CLASSES, queue_size=128, temperature=0.05)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

features = torch.randn(1600, 16)
targets = (features[:, :CLASSES] + 0.5 * torch.randn(1600, CLASSES)).argmax(1)
for step in range(50):
    # Of 32 rows the last rank takes what the others leave: 11, 11 and 10 with three ranks.
    rows = torch.arange(32 * step, 32 * step + 32).tensor_split(size)[rank]
    optimizer.zero_grad()
    loss = loss_fn(model(features[rows]), targets[rows])
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 10 == 9:
        print(f"step {step + 1}: loss {loss.item():.4f}")

weights = tutti.distributed.gather_all_tensors(model.module.weight.detach())
if rank == 0:
    print("parameters are equal on all ranks:", all(torch.equal(w, weights[0]) for w in weights))
dist.destroy_process_group()
