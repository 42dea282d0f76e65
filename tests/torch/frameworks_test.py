"""What PyTorch and its frameworks build on a process group, over the backend "tutti" on CPU. The quick tests compare
with one process. `--table` also runs every row of ROWS over torch's Gloo: the numbers are the same bit for bit.

usage: frameworks_test.py [-v] [TEST...]         the quick tests; TUTTI_BACKEND names the transport
       frameworks_test.py --table [ROW...]       prints the table of docs/pytorch.md; a row whose package is not
                                                 installed is skipped

Ranks of the quick tests are processes forked here, those of a row are programs with torchrun's variables."""
import contextlib
import datetime
import importlib.metadata
import operator
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from calls_test import equal, run_ranks

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/pytorch.md"
close = torch.testing.assert_close
ROWS = {}  # By name.


def row(name, package="torch", ranks=2, makes_group=False):
    """A row of the table: a function of the rank, the number of ranks and, if it makes the group itself, the backend.
    It returns numbers that are to be the same over every backend. With 1 rank it starts others."""
    def register(function):
        function.row = name, package, ranks, makes_group
        ROWS[name] = function
        return function
    return register


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def batch(size):
    """[2 * size, 6]: two rows for each rank."""
    return torch.arange(12.0 * size).reshape(2 * size, 6).sin()


def rows_of(rank, size):
    return batch(size)[2 * rank:2 * rank + 2]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, optimizer, rows, steps=3, backward=torch.Tensor.backward):
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model(rows).square().mean())
        optimizer.step()


def trained_alone(size, make_optimizer=sgd):
    model = network()
    train(model, make_optimizer(model), batch(size))
    return model


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def compare(model, expected, **tolerance):
    for (name, got), want in zip(model.state_dict().items(), expected.state_dict().values(), strict=True):
        close(whole(got), want, msg=lambda text, name=name: f"{name}: {text}", **tolerance)
    return [whole(parameter) for parameter in model.parameters()]


@row("functional collectives")
def functional_collectives(rank, size):
    mine = torch.arange(size * 2.0) + 10 * rank
    every = torch.stack([torch.arange(size * 2.0) + 10 * r for r in range(size)])
    group = dist.group.WORLD
    equal(functional.all_reduce(mine, "sum", group) + 0, every.sum(0), "all_reduce")
    if dist.get_backend() == "tutti":  # torch's Gloo has no average.
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


@row("DeviceMesh, DTensor with redistribute")
def device_mesh(rank, size):
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("rows", "columns"))
    data = torch.arange(24.0).reshape(4, 6)
    placed = distribute_tensor(data, mesh, [Shard(0), Replicate()])
    equal(placed.to_local(), data.chunk(2)[mesh.get_local_rank("rows")])
    equal(placed.redistribute(placements=[Shard(1), Replicate()]).full_tensor(), data)
    other = distribute_tensor(data.T.contiguous(), mesh, [Replicate(), Shard(1)])
    product = (placed @ other).full_tensor()
    close(product, data @ data.T)
    equal(placed.sum().full_tensor(), data.sum())
    return product


@row("FSDP1")
def fsdp1(rank, size):
    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    train(model, sgd(model), rows_of(rank, size))
    return compare(model, trained_alone(size))


def sharded(rank, size, mesh):
    model = network()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    train(model, sgd(model), rows_of(rank, size))
    return compare(model, trained_alone(size))


@row("FSDP2")
def fsdp2(rank, size):
    return sharded(rank, size, init_device_mesh("cpu", (size,)))


@row("HSDP", ranks=4)
def hsdp(rank, size):
    return sharded(rank, size, init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicas", "shards")))


@row("tensor parallelism")
def tensor_parallelism(_, size):
    mesh = init_device_mesh("cpu", (size,))
    model = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    expected = network()
    close(model(batch(size)), expected(batch(size)))
    model(batch(size)).square().mean().backward()
    expected(batch(size)).square().mean().backward()
    for got, want in zip(model.parameters(), expected.parameters()):
        close(whole(got.grad), want.grad)
    return [whole(got.grad) for got in model.parameters()]


def placed_rows(data, size):
    return {"data": distribute_tensor(data, init_device_mesh("cpu", (size,)), [Shard(0)])}


def save_checkpoint(folder, size):
    state = placed_rows(torch.arange(24.0).reshape(12, 2), size)
    checkpoint.save(state, checkpoint_id=f"{folder}/now")
    checkpoint.async_save(state, checkpoint_id=f"{folder}/async").result()


def load_checkpoint(folder, size):
    for name in ("now", "async"):
        state = placed_rows(torch.zeros(12, 2), size)
        checkpoint.load(state, checkpoint_id=f"{folder}/{name}")
        equal(state["data"].full_tensor(), torch.arange(24.0).reshape(12, 2))


@row("distributed checkpoints, also async")
def checkpoints(rank, size):
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    save_checkpoint(folder[0], size)
    load_checkpoint(folder[0], size)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])


@row("pipeline, 1F1B")
def pipeline(rank, size):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    model, expected, losses = network(), network(), []
    parts = [model[:2], model[2:]]
    stage = PipelineStage(parts[rank], rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, target: (out - target).square().mean())
    ends = {"target": torch.zeros(4, 4), "losses": losses}
    schedule.step(*([batch(size)] if rank == 0 else []), **(ends if rank == size - 1 else {}))
    expected(batch(size)).square().mean().backward()
    for got, want in zip(parts[rank].parameters(), [expected[:2], expected[2:]][rank].parameters()):
        close(got.grad, want.grad)
    return [got.grad for got in parts[rank].parameters()], losses


@row("torchmetrics, ranks of different lengths", "torchmetrics")
def metrics(rank, size):
    from torchmetrics import CatMetric
    from torchmetrics.classification import BinaryAccuracy, BinaryAUROC
    data = [torch.arange(7.0 + 3 * r).cos().abs() for r in range(size)]
    kept, scores = CatMetric(), [BinaryAccuracy(), BinaryAUROC()]
    kept.update(data[rank])
    equal(kept.compute(), torch.cat(data))
    for score in scores:
        score.update(data[rank], (data[rank] > 0.6).int().flip(0))
    return [score.compute() for score in scores]


@row("DDP with join, 3 and 5 steps")
def join(rank, size):
    model = DistributedDataParallel(network())
    with model.join():
        train(model, sgd(model), rows_of(rank, size), steps=3 + 2 * rank)
    return list(model.parameters())


@row("compiled DDP and functional collectives")
def compiled(rank, size):
    model = torch.compile(DistributedDataParallel(network()))
    train(model, sgd(model), rows_of(rank, size))
    compare(model._orig_mod.module, trained_alone(size))
    twice = torch.compile(lambda data: functional.all_reduce(data, "sum", dist.group.WORLD) * 2, fullgraph=True)
    equal(twice(torch.ones(3) * rank), torch.full((3,), size * (size - 1.0)))
    return list(model.parameters())


@row("ZeroRedundancyOptimizer")
def zero_redundancy(rank, size):
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    train(model, optimizer, rows_of(rank, size))
    return compare(model.module, trained_alone(size, make_optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=0.01)))


@row("PeriodicModelAverager")
def averager(rank, size):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    model, average = network(), PeriodicModelAverager(period=2)
    for _ in range(4):
        train(model, sgd(model), rows_of(rank, size), steps=1)
        average.average_parameters(model.parameters())
    return list(model.parameters())


@row("DDP's comm hooks")
def comm_hooks(rank, size):
    hooks = {"fp16": (None, default_hooks.fp16_compress_hook, 1e-2), "bf16": (None, default_hooks.bf16_compress_hook, 1e-1),
             # A matrix of the full rank loses nothing.
             "PowerSGD": (powerSGD_hook.PowerSGDState(dist.group.WORLD, 8, start_powerSGD_iter=2, min_compression_rate=0),
                          powerSGD_hook.powerSGD_hook, 1e-3)}
    results = []
    for name, (state, hook, tolerance) in hooks.items():
        model = DistributedDataParallel(network())
        model.register_comm_hook(state, hook)
        train(model, sgd(model), rows_of(rank, size))
        try:
            results += compare(model.module, trained_alone(size), rtol=tolerance, atol=tolerance)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    return results


@row("Accelerate", "accelerate", makes_group=True)
def accelerate(rank, size, backend):
    dist.init_process_group(backend)
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == size
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(batch(size)), batch_size=1)
    model = network()
    model, optimizer, rows = accelerator.prepare(model, sgd(model), rows)
    for data, in rows:
        train(model, optimizer, data, steps=1, backward=accelerator.backward)
    equal(accelerator.gather(torch.tensor([rank])), torch.arange(size))
    return list(model.parameters()), [accelerator.gather_for_metrics(data) for data, in rows]


@row("Hugging Face Trainer", "transformers", makes_group=True)
def trainer(_, size, backend):
    dist.init_process_group(backend)
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                         num_attention_heads=2))
    words = [{"input_ids": torch.arange(8) * (i + 1) % 64, "labels": torch.arange(8) * (i + 1) % 64} for i in range(16)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, use_cpu=True, max_steps=3, per_device_train_batch_size=2, report_to=[],
                                      save_strategy="no", disable_tqdm=True)
        assert arguments.world_size == size
        trained = Trainer(model, arguments, train_dataset=words, eval_dataset=words)
        loss = trained.train().training_loss
        return list(model.parameters()), loss, trained.evaluate()["eval_loss"]


@row("DeepSpeed, ZeRO 0 to 3", "deepspeed", makes_group=True)
def deepspeed(rank, size, backend):
    import deepspeed as ds
    ds.init_distributed(backend, auto_mpi_discovery=False)
    losses = []
    for stage in range(4):
        model = network()
        engine, *_ = ds.initialize(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01), config={
            "train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": stage}})
        for _ in range(3):
            losses.append(engine(rows_of(rank, size)).square().mean())
            engine.backward(losses[-1])
            engine.step()
    return losses


@row("Lightning Trainer", "lightning", ranks=1, makes_group=True)
def lightning_trainer(_, __, backend):
    import lightning_test
    with tempfile.TemporaryDirectory() as folder:
        lightning_test.fit(folder, 2, backend)
        return [torch.load(f"{folder}/{rank}") for rank in range(2)]


@row("Lightning Fabric", "lightning", makes_group=True)
def lightning_fabric(rank, size, backend):
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy
    fabric = Fabric(accelerator="cpu", devices=size, strategy=DDPStrategy(process_group_backend=backend))
    fabric.launch()
    model = network()
    model, optimizer = fabric.setup(model, sgd(model))
    train(model, optimizer, rows_of(rank, size), backward=fabric.backward)
    return list(model.parameters()), fabric.all_gather(torch.tensor(rank)), fabric.all_reduce(torch.tensor(rank + 1.0))


@row("Ray Train", "ray", ranks=1, makes_group=True)
def ray_train(_, __, backend):
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    def loop(config):
        rank, size = dist.get_rank(), dist.get_world_size()
        model = DistributedDataParallel(network())
        train(model, sgd(model), rows_of(rank, size))
        torch.save(list(model.parameters()), f"{config['folder']}/{rank}")
    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000,
                 runtime_env={"worker_process_setup_hook": "tutti.c10d.register"})  # A build folder has no entry point.
        try:
            TorchTrainer(loop, train_loop_config={"folder": folder}, torch_config=TorchConfig(backend=backend),
                         scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=folder)).fit()
        finally:
            ray.shutdown()
        return [torch.load(f"{folder}/{rank}") for rank in range(2)]


@row("torchft, 3 quorums", "torchft-nightly", makes_group=True)
def torchft(rank, size, backend):
    import tutti
    from torchft import process_group

    class ProcessGroupTutti(process_group.ProcessGroupWrapper):
        def _create_pg(self, store, rank, world_size):
            group, kind = dist.ProcessGroup(store, rank, world_size), dist.ProcessGroup.BackendType.CUSTOM
            group._set_default_backend(kind)
            made = tutti.c10d.create(store, rank, world_size, self._timeout, name="quorum")
            group._register_backend(torch.device("cpu"), kind, made)
            return group

    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=rank == 0,
                          timeout=datetime.timedelta(seconds=60))
    group = (ProcessGroupTutti if backend == "tutti" else process_group.ProcessGroupGloo)()
    results = []
    for quorum in range(3):
        process_group.reconfigure_with_store(group, f"{store.host}:{store.port}/quorum/{quorum}", rank, size)
        results.append(network()[0].weight.detach() * (rank + quorum + 1))
        group.allreduce([results[-1]], dist.ReduceOp.SUM).wait()
    return results


class Last:
    """An object that Python frees after its last thread."""

    def __init__(self, store):
        self.store = store

    def __del__(self, sleep=time.sleep):
        self.store.set("rank 0 ends", "1")
        sleep(1)


def leave_groups(rank, size, backend):
    """Six groups and DDP are there when the program ends, and calls of rank 0 end while Python does."""
    dist.init_process_group(backend)
    for _ in range(6):
        dist.all_reduce(torch.ones(4), group=dist.new_group(list(range(size))))
    model = DistributedDataParallel(network())
    train(model, sgd(model), rows_of(rank, size))
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        globals()["last"] = Last(store)
    else:
        store.wait(["rank 0 ends"])
    dist.all_reduce(torch.ones(1000), async_op=True)
    dist.all_reduce(torch.ones(1), async_op=True).get_future().then(operator.methodcaller("value"))
    return list(model.parameters())


def run_rank(rank, size, backend, folder, destroys, *names):
    """The program of a rank, for one row, or for several over one group."""
    results = []
    for name in names:
        function = ROWS.get(name, leave_groups)
        if name in ROWS and not function.row[3]:
            if not dist.is_initialized():
                dist.init_process_group(backend, timeout=datetime.timedelta(seconds=120))
            results.append(function(rank, size))
        else:
            results.append(function(rank, size, backend))
        print(name, flush=True)
    torch.save(results, f"{folder}/{rank}")
    if destroys == "True" and dist.is_initialized():
        dist.destroy_process_group()


def free_port():
    """Below the ports that the system gives to connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port


def run_programs(names, backend, ranks=2, destroys=True, limit=900):
    """The results of rows: one for each rank, which has one for each row."""
    with contextlib.ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory())
        port = free_port()
        programs = []
        for rank in range(ranks):
            variables = {"OMP_NUM_THREADS": 1, "RAY_USAGE_STATS_ENABLED": 0, "HF_HUB_OFFLINE": 1}
            if ranks > 1:
                variables |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks,
                              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            output = held.enter_context(open(f"{folder}/output{rank}", "w", encoding="utf-8"))
            programs.append(subprocess.Popen(
                [sys.executable, "-W", "ignore", "-B", __file__, "--rank", str(rank), str(ranks), backend, folder,
                 str(destroys), *names], stdout=output, stderr=output,
                env={**os.environ, **{name: str(value) for name, value in variables.items()}}))
            held.callback(programs[-1].kill)
        failures = []
        for rank, program in enumerate(programs):
            try:
                code = program.wait(limit)
            except subprocess.TimeoutExpired:
                code = f"no exit code after {limit} s"
            if code != 0:
                text = pathlib.Path(f"{folder}/output{rank}").read_text(encoding="utf-8")
                failures.append(f"{names} over {backend}, rank {rank}: {code}\n{text[-6000:]}")
        assert not failures, "\n".join(failures)
        return [torch.load(f"{folder}/{rank}", weights_only=False) for rank in range(ranks)]


def numbers(value):
    """The tensors and numbers in a result, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [entry for each in value for entry in numbers(each)]
    return [] if value is None else [whole(torch.as_tensor(value))]


def print_table(chosen):
    programs, lines, skipped = {}, [], []
    for name in chosen or ROWS:
        _, package, ranks, makes_group = ROWS[name].row
        try:
            lines.append(f"| {name} | {package} {importlib.metadata.version(package)} |")
            programs.setdefault(name if makes_group else ranks, (ranks, []))[1].append(name)
        except importlib.metadata.PackageNotFoundError:
            skipped.append(f"skipped: {name}: {package} is not installed")
    for ranks, names in programs.values():
        ours, gloos = (run_programs(names, backend, ranks) for backend in ("tutti", "gloo"))
        for rank in range(ranks):
            for name, got, want in zip(names, ours[rank], gloos[rank], strict=True):
                for one, other in zip(numbers(got), numbers(want), strict=True):
                    equal(one, other, f"{name}, rank {rank}, tutti and gloo")
        print(f"{', '.join(names)}: equal", flush=True)
    print("\n".join(["| Framework | Version |", "|---|---|", *lines, *skipped]))
    documented = DOCUMENT.read_text(encoding="utf-8").partition("\n## Frameworks\n")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| (.+?) \|", documented, re.MULTILINE)[1:]
    assert documented == list(ROWS), f"docs/pytorch.md has {documented}; the rows are {list(ROWS)}"


class Frameworks(unittest.TestCase):
    def on_ranks(self, body, sizes=(2, 3)):
        for size in sizes:
            with self.subTest(size=size):
                run_ranks(size, body, timeout=120, group_timeout=60)

    def test_functional_collectives(self):
        self.on_ranks(functional_collectives, sizes=(1, 2, 3))

    def test_device_mesh_and_dtensor(self):
        self.on_ranks(device_mesh, sizes=(2, 4))

    def test_fsdp2_trains_as_one_process(self):
        self.on_ranks(fsdp2)

    def test_tensor_parallelism(self):
        self.on_ranks(tensor_parallelism, sizes=(2,))

    def test_a_checkpoint_is_read_by_another_number_of_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            self.on_ranks(lambda _, size: save_checkpoint(folder, size), sizes=(2,))
            self.on_ranks(lambda _, size: load_checkpoint(folder, size), sizes=(3,))

    def test_an_optimizer_without_redundancy(self):
        self.on_ranks(zero_redundancy)

    def test_comm_hooks(self):
        self.on_ranks(comm_hooks)

    def test_programs_end_without_destroying_groups(self):
        run_programs(["six groups"], "tutti", destroys=False)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        run_rank(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
    elif sys.argv[1:2] == ["--table"]:
        print_table(sys.argv[2:])
    else:
        print("tutti", os.environ.get("TUTTI_BACKEND", "auto"), "under torch", torch.__version__)
        unittest.main()
