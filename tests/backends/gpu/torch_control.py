"""The same ranks by torch's own backend nccl, without this library: torch_control.py [share | sizes | ddp] [--cpu], started by the script
`run`.
  share  two ranks on one device: an all_reduce and a graph. If torch cannot share the device either, NCCL cannot
  sizes  what an all_reduce costs, by sizes, beside gpu_overhead
  ddp    a step's exchange of gradients by DistributedDataParallel, beside gpu_overhead --reducer
The last line of share is "ok" or says what is wrong; the others print rows of a table. Status 1 for wrong elements, 3 without torch on a
GPU. --cpu: over gloo in host memory, small, for a test of this script."""
import datetime
import os
import statistics
import sys
import time

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"python3 has no torch: {error}")
    sys.exit(3)

ON_CPU = "--cpu" in sys.argv
WHAT = next((argument for argument in sys.argv[1:] if argument != "--cpu"), "share")
if not ON_CPU and not torch.cuda.is_available():
    print("torch sees no GPU")
    sys.exit(3)

RANK, SIZE = int(os.environ["TUTTI_RANK"]), int(os.environ["TUTTI_SIZE"])
DEVICE = "cpu" if ON_CPU else "cuda"
UNITS = ["B", "KiB", "MiB", "GiB"]


def wrong_in(data, want):
    return int((data != want).sum().item())


def share():
    data = torch.full((1000,), float(RANK), device=DEVICE)
    want = float(sum(range(SIZE)))
    dist.all_reduce(data)
    failures = {"all_reduce": wrong_in(data, want)}
    if not ON_CPU:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            dist.all_reduce(data)
        for _ in range(3):
            data.fill_(float(RANK))
            graph.replay()
            failures["graph"] = failures.get("graph", 0) + wrong_in(data, want)
        del graph  # NCCL's communicator ends only after it.
    return failures


def time_of(calls, call):
    """Microseconds of one of `calls` calls: between events on the device, and until they have returned."""
    if ON_CPU:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        took = (time.perf_counter() - start) * 1e6 / calls
        return took, took
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    host = (time.perf_counter() - start) * 1e6 / calls
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / calls, host


def row(name, times):
    if RANK == 0:
        device, host = (statistics.median(column) for column in zip(*times))
        print(f"| {name} | {device:.2f} | {host:.2f} |", flush=True)


def size_text(count):
    unit = 0
    while unit < 3 and count % 1024 == 0:
        count, unit = count // 1024, unit + 1
    return f"{count} {UNITS[unit]}"


def sizes():
    failures = {}
    count = 8
    while count <= (4096 if ON_CPU else 1 << 30):
        data = torch.arange(count // 4, device=DEVICE) % 61 + float(RANK)
        want = torch.arange(count // 4, device=DEVICE) % 61 * SIZE + float(sum(range(SIZE)))
        dist.all_reduce(data)
        failures[size_text(count)] = wrong_in(data, want)
        data.zero_()
        calls = min(max((64 << 20) // count, 4), 50)  # Two processes have a device in turns, which takes its time.
        rounds = [time_of(calls, lambda: dist.all_reduce(data)) for _ in range(6)]
        row(f"torch all_reduce | {size_text(count)}", rounds[1:])  # The first one warms up.
        count *= 8
    return failures


class Gradients(torch.nn.Module):
    """160 parameters, of 53 MiB in all (gradient_counts() in reducer.cpp), whose backward computes next to nothing."""

    def __init__(self):
        super().__init__()
        self.all = torch.nn.ParameterList(torch.zeros((1 if ON_CPU else 256) << (i % 12), device=DEVICE) for i in range(160))

    def forward(self):
        return sum(one.sum() for one in self.all) * float(RANK + 1)


def ddp():
    model = Gradients()
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=None if ON_CPU else [torch.cuda.current_device()])
    times = {"DistributedDataParallel": [], "the same backward without an exchange": []}
    wrong = 0
    for step in range(5 if ON_CPU else 23):
        for name, column in times.items():
            model.zero_grad()
            if name == "DistributedDataParallel":
                loss = parallel()
                took = time_of(1, loss.backward)
                wrong += sum(wrong_in(one.grad, (SIZE + 1) / 2) for one in model.all)
            else:
                with parallel.no_sync():
                    loss = parallel()
                    took = time_of(1, loss.backward)
            if step >= 3:  # DistributedDataParallel makes its buckets anew after the first step.
                column.append(took)
    for name, column in times.items():
        row(f"{name}, {len(model.all)} gradients", column)
    return {"gradients": wrong}


if not ON_CPU:
    torch.cuda.set_device(RANK % torch.cuda.device_count())
if WHAT == "share":
    version = "" if ON_CPU else f", NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
    print(f"torch {torch.__version__}{version}", flush=True)
store = dist.FileStore(os.environ["TUTTI_STORE"].removeprefix("file://") + "/torch", SIZE)
dist.init_process_group("gloo" if ON_CPU else "nccl", store=store, rank=RANK, world_size=SIZE, timeout=datetime.timedelta(seconds=40))
bad = {name: count for name, count in {"share": share, "sizes": sizes, "ddp": ddp}[WHAT]().items() if count}
dist.destroy_process_group()
if bad:
    print(f"wrong elements: {bad}")
elif WHAT == "share":
    print("ok")
sys.exit(1 if bad else 0)
