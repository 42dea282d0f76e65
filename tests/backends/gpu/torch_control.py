"""The same two ranks on one device by torch's own backend nccl, without this library: torch_control.py, started by the script `run`. If
torch cannot share the device either, NCCL cannot. The last line is "ok" or says what is wrong; status 3 without torch on a GPU."""
import datetime
import os
import sys

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"python3 has no torch: {error}")
    sys.exit(3)
if not torch.cuda.is_available():
    print("torch sees no GPU")
    sys.exit(3)

rank, size = int(os.environ["TUTTI_RANK"]), int(os.environ["TUTTI_SIZE"])
torch.cuda.set_device(rank % torch.cuda.device_count())
print(f"torch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}", flush=True)
store = dist.FileStore(os.environ["TUTTI_STORE"].removeprefix("file://") + "/torch", size)
dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=40))
data = torch.full((1000,), float(rank), device="cuda")
want = float(sum(range(size)))


def wrong():
    return int((data != want).sum().item())


dist.all_reduce(data)
failures = {"all_reduce": wrong()}
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode="thread_local"):
    dist.all_reduce(data)
for _ in range(3):
    data.fill_(float(rank))
    graph.replay()
    failures["graph"] = failures.get("graph", 0) + wrong()
del graph  # NCCL's communicator ends only after it.
dist.destroy_process_group()
bad = {name: count for name, count in failures.items() if count}
print(f"wrong elements: {bad}" if bad else "ok")
sys.exit(1 if bad else 0)
