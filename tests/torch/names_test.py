"""The functions of tutti.distributed over tutti and torch's Gloo, beside their C++ forms and imbalanced-losses, and
what else the package tutti has under names of its own.

usage: names_test.py [-v] [TEST...]; TUTTI_TEST_NAMES: the program tests/adapters/torch_test, for the C++ forms. Ranks are
processes forked here."""
import collections
import contextlib
import inspect
import math
import os
import subprocess
import sys
import unittest
import unittest.mock as mock

import torch
import torch.distributed as dist

import tutti
from tutti import distributed, losses
from calls_test import equal, run_ranks, sum_of

try:
    import imbalanced_losses.distributed as package
except ModuleNotFoundError:
    package = None


def of_cpp():
    """The results that the C++ forms print, for each number of ranks and rank: those of every backend and mode."""
    found = collections.defaultdict(list)
    if "TUTTI_TEST_NAMES" not in os.environ:
        print("without the results of C++: TUTTI_TEST_NAMES is not set", file=sys.stderr)
    else:
        lines = subprocess.run([os.environ["TUTTI_TEST_NAMES"], "--gtest_filter=*PrintTheirResults*"], check=True, text=True,
                               stdout=subprocess.PIPE).stdout.splitlines()
        for line in lines:
            if line.startswith("names "):
                _, size, rank, name, *values = line.split()
                results = found[int(size), int(rank)]
                if not results or (name == "all_gather_with_grad" and len(results[-1]) > 6):
                    results.append([])
                results[-1].append((name, [float(value) for value in values]))
        assert len(found) == 6, f"results of {sorted(found)}"
    return found


def results_of(rank, size):
    """The same results here, by the forms of tutti.distributed. Row counts differ, and rank 1 has none."""
    results = []

    def add(name, values):
        results.append((name, torch.as_tensor(values, dtype=torch.float64).detach().reshape(-1).tolist()))
    rows = (2, 0, 3)[rank]
    x = (torch.arange(rows * 2, dtype=torch.float64) + 10 * rank + 1).view(rows, 2) / 4
    for scale in ("sum", "mean", "local_slice"):
        local = x.clone().requires_grad_()
        whole = distributed.all_gather_with_grad(local, grad_scale=scale)
        (whole.square() * torch.arange(len(whole))[:, None] * (rank + 1)).sum().backward()
        add("all_gather_with_grad", whole)
        add(scale, local.grad)
    add("all_gather_no_grad", distributed.all_gather_no_grad(torch.full((rows,), rank)))
    for each in distributed.gather_all_tensors(torch.full((rank + 1, 3 - rank), rank, dtype=torch.float64)):
        add("gather_all_tensors", each)
    for op in ("sum", "Mean", "avg", "max", "MIN", "prod", "product"):
        for data in (torch.arange(2, dtype=torch.float64) - rank, torch.arange(2) * 3 - 4 * rank):
            assert distributed.sync_ddp(data, reduce_op=op) is data
            add(op, data)
    add("sync_ddp", distributed.sync_ddp(0.1 * (rank + 1)))
    add("global_mean", distributed.global_mean(0.1 * rank, rows))
    for mean in distributed.reduce_losses([("b", 0.1 * rank, 1.0 + rank), ("a", 0, 0)]):
        add("reduce_losses", mean)
    steps = distributed.LossAccumulator()
    steps.expect("late")
    for i in range(rank + 1):
        steps.add("early", 0.1 * i, i + rank)
    if rank == 0:
        steps.add("late", torch.tensor(0.7, dtype=torch.float64), 3)
    for _ in range(2):
        for name, mean in steps.reduce().items():
            add(name, mean)
    return results


def same(got, expected):
    assert [name for name, _ in got] == [name for name, _ in expected], f"{got} has other names than {expected}"
    for (name, mine), (_, theirs) in zip(got, expected):
        torch.testing.assert_close(torch.tensor(mine, dtype=torch.float64), torch.tensor(theirs, dtype=torch.float64),
                                   rtol=1e-14, atol=0, equal_nan=True, msg=f"{name}: {mine} here, {theirs} in C++")


class Names(unittest.TestCase):
    def on_ranks(self, body, sizes=(1, 2, 3), backends=("tutti", "gloo")):
        for size in sizes:
            for backend in backends:
                with self.subTest(size=size, backend=backend):
                    run_ranks(size, body, backend=backend)

    def test_one_meaning_in_every_form(self):
        cpp = of_cpp()

        def body(rank, size):
            got = results_of(rank, size)
            for expected in cpp[size, rank]:
                same(got, expected)
        self.on_ranks(body)

    @unittest.skipIf(package is None, "imbalanced_losses is not installed")
    def test_the_gathers_beside_those_of_the_package(self):
        def body(rank, size):
            x = torch.arange(4.0 * rank).view(-1, 2) + rank  # Rank 0 has no rows.
            grads = []
            for gather in (package.all_gather_with_grad, lambda t: distributed.all_gather_with_grad(t, grad_scale="local_slice")):
                local = x.clone().requires_grad_()
                whole = gather(local)
                equal(whole.detach(), package.all_gather_no_grad(x))
                (whole.square().sum() * (rank + 1)).backward()
                grads.append(local.grad)
            equal(*grads)
            equal(distributed.all_gather_no_grad(x), package.all_gather_no_grad(x))
        self.on_ranks(body)

    def test_the_default_gradient_is_the_sum_over_ranks(self):
        def body(rank, size):
            rows = [torch.arange(2.0 * r).view(-1, 2) + r for r in range(size)]  # Rank 0 has no rows.
            local = rows[rank].clone()
            if rank != 0:  # Rank 0 reaches the backward nevertheless.
                local.requires_grad_()
            whole = distributed.all_gather_with_grad(local)
            equal(whole.detach(), torch.cat(rows))
            if size > 1:
                (whole.square().sum() * (rank + 1)).backward()
            if rank != 0:
                equal(local.grad, 2 * rows[rank] * (size * (size + 1) // 2))
        self.on_ranks(body)

    def test_a_backward_sends_each_rank_its_rows_once(self):
        def body(rank, size):
            rows = torch.ones(2 * rank, 3, requires_grad=True)
            whole = distributed.all_gather_with_grad(rows)
            places = {"all_reduce": dist, "all_gather": dist, "reduce_scatter": dist, "all_to_all_single": dist,
                      "reduce_scatter_rows": torch.ops.tutti}
            with contextlib.ExitStack() as patches:
                calls = {name: patches.enter_context(mock.patch.object(place, name, wraps=getattr(place, name)))
                         for name, place in places.items()}
                whole.sum().backward()
            (name, args), = [(name, call.call_args.args) for name, call in calls.items() if call.called]
            assert name == ("reduce_scatter_rows" if dist.get_backend() == "tutti" else "all_to_all_single"), name
            assert args[name == "all_to_all_single"].nbytes == whole.nbytes
            equal(rows.grad, torch.full_like(rows, size))
        self.on_ranks(body, sizes=(2, 3))

    def test_a_tensor_without_dimensions_is_one_row(self):
        def body(rank, size):
            x = torch.ones(() if rank == 1 else 2, requires_grad=True)
            whole = distributed.all_gather_with_grad(x)
            equal(whole.detach(), torch.ones(2 * size - 1))
            whole.sum().backward()
            equal(x.grad, torch.full_like(x, size))
        self.on_ranks(body, sizes=(2, 3))

    def test_before_init_every_function_says_what_to_call(self):
        x = torch.ones(2)
        arguments = {"sync_ddp": [1.0], "global_mean": [1, 1], "reduce_losses": [[]], "LossAccumulator": []}
        for name in distributed.__all__:
            call = getattr(distributed, name)
            with self.assertRaisesRegex(RuntimeError, r"call init_process_group\(\) on every rank before "):
                (call().reduce if inspect.isclass(call) else call)(*arguments.get(name, [x]))

    def test_with_one_rank_a_gather_is_the_tensor_itself(self):
        def body(rank, size):
            x = torch.ones(2, requires_grad=True)
            assert distributed.all_gather_with_grad(x) is x
            assert distributed.all_gather_no_grad(x) is x
            assert distributed.gather_all_tensors(x)[0] is x
        self.on_ranks(body, sizes=(1,))

    def test_the_own_entry_of_gather_all_tensors_keeps_its_graph(self):
        def body(rank, size):
            x = torch.full((rank, 2 * size - rank), 1.0 + rank, requires_grad=True)
            each = distributed.gather_all_tensors(x * 2)
            for r, tensor in enumerate(each):
                equal(tensor.detach(), torch.full((r, 2 * size - r), 2.0 + 2 * r))
            sum(tensor.sum() for tensor in each).backward()
            equal(x.grad, torch.full_like(x, 2))
            for other in (x[0] if rank == 1 else x, x.detach().int() if rank == 1 else x):
                with self.assertRaisesRegex(ValueError, "rank 0 has torch.float32 .*; rank 1 has"):
                    distributed.gather_all_tensors(other)
            equal(distributed.gather_all_tensors(torch.tensor(rank))[size - 1], torch.tensor(size - 1))
        self.on_ranks(body, sizes=(2, 3))

    def test_reductions_take_the_operations_of_torch(self):
        def body(rank, size):
            for op, expected in ((None, sum(range(1, size + 1))), (dist.ReduceOp.SUM, sum(range(1, size + 1))),
                                 (dist.ReduceOp.AVG, (size + 1) / 2), (dist.ReduceOp.PRODUCT, math.factorial(size)),
                                 (dist.ReduceOp.MAX, size), (dist.ReduceOp.MIN, 1)):
                data = torch.tensor([rank + 1.0], requires_grad=True)
                assert distributed.sync_ddp(data, reduce_op=op) is data
                equal(data.detach(), torch.tensor([float(expected)]), str(op))
                got = distributed.sync_ddp(rank + 1, reduce_op=op)
                assert isinstance(got, int) and got == int(expected), f"{op}: {got}"
            with self.assertRaisesRegex(ValueError, "'median'; known are sum, mean, avg, max, min, prod, product"):
                distributed.sync_ddp(1, reduce_op="median")
        self.on_ranks(body)

    def test_what_no_rank_can_do_is_refused_on_all(self):
        def body(rank, size):
            for gather in (distributed.all_gather_with_grad, distributed.all_gather_no_grad):
                if dist.get_backend() == "tutti":
                    with self.assertRaisesRegex(dist.DistBackendError, r"mismatch.*\[\*, 2\].*\[\*, 3\]"):
                        gather(torch.ones(1, 2 + (rank == 1)))
            with self.assertRaisesRegex(ValueError, "grad_scale is 'half'; it is one of sum, mean, local_slice"):
                distributed.all_gather_with_grad(torch.ones(2), grad_scale="half")
            with self.assertRaisesRegex(ValueError, r"rank 0 has \['a'\]; rank 1 has \['a', 'b'\]"):
                distributed.reduce_losses([(name, 1, 1) for name in "ab"[:1 + (rank == 1)]])
            equal(sum_of(torch.ones(1)), torch.ones(1) * size)
        self.on_ranks(body, sizes=(2, 3))

    def test_a_backend_that_torch_does_not_know(self):
        def body(rank, size):
            store = dist.PrefixStore("own", dist.distributed_c10d._get_default_store())
            made = tutti.c10d.create(store, rank, size, name="mine", backend="shm")
            data = [torch.ones(3) * rank]
            made.allreduce(data).wait()
            equal(data[0], torch.full((3,), size * (size - 1) / 2))
            assert made.name() == "tutti"
            with self.assertRaisesRegex(dist.DistBackendError, "mismatch.* group 'mine'"):
                made.allreduce([torch.ones(3 + rank)]).wait()
            with self.assertRaisesRegex(ValueError, "rank is 2; a group of 2 has ranks 0 to 1"):
                tutti.c10d.create(store, 2, size)
        self.on_ranks(body, sizes=(2,))

    def test_star_imports_and_keywords(self):
        for module in (distributed, losses):
            for name in module.__all__:
                assert getattr(module, name).__module__.startswith("tutti."), name
        for kind, needed in ((losses.SmoothAPLoss, [2]), (losses.PAUCAtBudgetLoss, [2]), (losses.SigmoidFocalLoss, [])):
            with self.assertRaisesRegex(TypeError, rf"{kind.__name__}.__init__\(\) .* 'tempreature'"):
                kind(*needed, tempreature=1)


if __name__ == "__main__":
    print("tutti", tutti.__version__, "under torch", torch.__version__)
    unittest.main()
