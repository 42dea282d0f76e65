"""Every call of torch.distributed over the backend "tutti", against results computed here, and its errors.

usage: calls_test.py [-v] [TEST...]; TUTTI_BACKEND names the transport. Ranks are processes forked here."""
import datetime
import os
import signal
import tempfile
import threading
import time
import traceback
import unittest

import tutti
import torch
import torch.distributed as dist

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16,
          torch.uint8, torch.complex64]


def run_ranks(size, body, timeout=30, group_timeout=20, backend="tutti", device_id=None):
    """Calls body(rank, size) in `size` forked processes with a group, and raises the first failure."""
    context = torch.multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as directory:
        results = context.SimpleQueue()

        def run(rank):
            try:
                dist.init_process_group(backend, init_method=f"file://{directory}/store", rank=rank, world_size=size,
                                        timeout=datetime.timedelta(seconds=group_timeout), device_id=device_id)
                body(rank, size)
                dist.destroy_process_group()
                results.put((rank, None))
            except BaseException:  # pylint: disable=broad-except
                results.put((rank, traceback.format_exc()))
                os._exit(1)  # The others may wait for this rank.

        processes = [context.Process(target=run, args=(rank,), daemon=True) for rank in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout)
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for rank in late:
            processes[rank].kill()
        failures = []
        while not results.empty():
            rank, failure = results.get()
            if failure is not None:
                failures.append(f"rank {rank}: {failure}")
        if late:
            failures.append(f"ranks {late} have not ended in {timeout} s")
        failures += [f"rank {r} ended with {p.exitcode}" for r, p in enumerate(processes) if p.exitcode and r not in late]
        if failures:
            raise AssertionError("\n".join(failures))


def sum_of(data):
    dist.all_reduce(data)
    return data


def values(rank, count, dtype, step=1):
    """Small integers that differ between ranks."""
    return (torch.arange(count) * step % 5 + rank + 1).to(dtype)


def equal(got, expected, what=""):
    assert got.dtype == expected.dtype and torch.equal(got, expected), f"{what}: {got} != {expected}"


def reduced(size, count, dtype, op):
    rows = torch.stack([values(r, count, torch.complex128 if dtype.is_complex else torch.float64)
                        for r in range(size)])
    return {dist.ReduceOp.SUM: lambda: rows.sum(0), dist.ReduceOp.PRODUCT: lambda: rows.prod(0),
            dist.ReduceOp.MIN: lambda: rows.amin(0), dist.ReduceOp.MAX: lambda: rows.amax(0),
            dist.ReduceOp.AVG: lambda: rows.sum(0) / size}[op]().to(dtype)


class Calls(unittest.TestCase):
    def on_ranks(self, body, sizes=(1, 2, 3), **options):
        for size in sizes:
            with self.subTest(size=size):
                run_ranks(size, body, **options)

    def test_all_reduce(self):
        def body(rank, size):
            for dtype in DTYPES:
                ops = [dist.ReduceOp.SUM, dist.ReduceOp.AVG]
                if not dtype.is_complex:
                    ops += [dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
                for op in ops:
                    for count in (0, 1, 17, 1000):
                        for wait in (False, True):
                            data = values(rank, count, dtype)
                            work = dist.all_reduce(data, op=op, async_op=wait)
                            if wait:
                                work.wait()
                                assert work.is_completed() and work.is_success()
                            tolerance = 0 if dtype.itemsize > 2 else 0.01
                            torch.testing.assert_close(data, reduced(size, count, dtype, op), rtol=tolerance, atol=0)
        self.on_ranks(body)

    def test_a_tensor_that_is_not_contiguous(self):
        def body(rank, size):
            whole = torch.full((4, 6), float(rank + 1))
            dist.all_reduce(whole[:, ::2])
            total = size * (size + 1) / 2
            equal(whole[:, ::2].contiguous(), torch.full((4, 3), total))
            equal(whole[:, 1::2].contiguous(), torch.full((4, 3), float(rank + 1)))
            turned = torch.full((3, 2), float(rank)).t()
            dist.broadcast(turned, size - 1)
            equal(turned.contiguous(), torch.full((2, 3), float(size - 1)))
        self.on_ranks(body)

    def test_broadcast_and_reduce(self):
        def body(rank, size):
            for dtype in DTYPES + [torch.bool, torch.float8_e4m3fn]:
                for root in range(size):
                    data = values(rank, 9, torch.float32).to(dtype)
                    dist.broadcast(data, root)
                    equal(data.to(torch.float32), values(root, 9, torch.float32).to(dtype).to(torch.float32))
            for root in range(size):
                data = values(rank, 9, torch.float32)
                dist.reduce(data, root)
                equal(data, reduced(size, 9, torch.float32, dist.ReduceOp.SUM) if rank == root
                      else values(rank, 9, torch.float32))
        self.on_ranks(body)

    def test_all_gather(self):
        def body(rank, size):
            for dtype in DTYPES:
                parts = [torch.empty(4, dtype=dtype) for _ in range(size)]
                dist.all_gather(parts, values(rank, 4, dtype))
                for r, part in enumerate(parts):
                    equal(part, values(r, 4, dtype))
                whole = torch.empty(4 * size, dtype=dtype)
                dist.all_gather_into_tensor(whole, values(rank, 4, dtype))
                equal(whole, torch.cat([values(r, 4, dtype) for r in range(size)]))
            uneven = [torch.empty(r + 1, 2) for r in range(size)]
            dist.all_gather(uneven, values(rank, 2 * rank + 2, torch.float32).view(-1, 2))
            for r, part in enumerate(uneven):
                equal(part, values(r, 2 * r + 2, torch.float32).view(-1, 2))
        self.on_ranks(body)

    def test_gather_and_scatter(self):
        def body(rank, size):
            for root in range(size):
                parts = [torch.empty(3) for _ in range(size)] if rank == root else None
                dist.gather(values(rank, 3, torch.float32), parts, dst=root)
                for r, part in enumerate(parts or []):
                    equal(part, values(r, 3, torch.float32))
                out = torch.empty(3)
                dist.scatter(out, [values(r, 3, torch.float32) for r in range(size)] if rank == root else None,
                             src=root)
                equal(out, values(rank, 3, torch.float32))
        self.on_ranks(body)

    def test_reduce_scatter(self):
        def body(rank, size):
            whole = values(rank, 4 * size, torch.float32)
            expected = reduced(size, 4 * size, torch.float32, dist.ReduceOp.SUM)[4 * rank:4 * rank + 4]
            out = torch.empty(4)
            dist.reduce_scatter_tensor(out, whole)
            equal(out, expected)
            dist.reduce_scatter(out.zero_(), list(whole.split(4)))
            equal(out, expected)
        self.on_ranks(body)

    def test_all_to_all(self):
        def body(rank, size):
            ins = [torch.full((r + rank + 1,), float(10 * rank + r)) for r in range(size)]
            outs = [torch.empty(r + rank + 1) for r in range(size)]
            dist.all_to_all(outs, ins)
            for r, out in enumerate(outs):
                equal(out, torch.full((r + rank + 1,), float(10 * r + rank)))
            out = torch.empty(sum(r + rank + 1 for r in range(size)), 2)
            dist.all_to_all_single(out, torch.cat(ins).unsqueeze(1).repeat(1, 2),
                                   [r + rank + 1 for r in range(size)], [r + rank + 1 for r in range(size)])
            equal(out, torch.cat(outs).unsqueeze(1).repeat(1, 2))
        self.on_ranks(body)

    def test_messages(self):
        def body(rank, size):
            right, left = (rank + 1) % size, (rank - 1) % size
            got = torch.empty(5)
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, values(rank, 5, torch.float32), right),
                                                dist.P2POp(dist.irecv, got, left)]):
                work.wait()
            equal(got, values(left, 5, torch.float32))
        self.on_ranks(body, sizes=(2, 3))

    def test_sparse_tensors_are_summed(self):
        def body(rank, size):
            dense = torch.zeros(6, 2)
            dense[rank:rank + 2] = 1
            if rank == 1:
                dense.zero_()
            data = dense.to_sparse(1)
            dist.all_reduce(data)
            expected = torch.zeros(6, 2)
            for r in range(size):
                if r != 1:
                    expected[r:r + 2] += 1
            equal(data.to_dense(), expected)
        self.on_ranks(body)

    def test_sub_groups(self):
        def body(rank, size):
            part = dist.new_group([0, size - 1])
            if rank in (0, size - 1):
                data = torch.tensor([float(rank)])
                dist.all_reduce(data, group=part)
                equal(data, torch.tensor([float(size - 1)]))
            dist.barrier()
        self.on_ranks(body, sizes=(2, 3))

    def test_one_backend_serves_cpu_and_cuda(self):
        def body(rank, size):
            group = dist.distributed_c10d._get_default_group()
            assert group._get_backend(torch.device("cuda")) is group._get_backend(torch.device("cpu"))
            assert ";" not in tutti.c10d.describe(), tutti.c10d.describe()  # No group on a device yet.
            part = dist.new_group([0])
            if rank == 0:
                dist.all_reduce(torch.ones(1), group=part)
            equal(sum_of(torch.ones(2)), torch.full((2,), float(size)))
        # Bound to a device, torch makes sub-groups another way; before 2.15 it takes only devices of an accelerator.
        devices = (None, torch.device("cpu", 0)) if int(torch.__version__.split(".")[1]) >= 15 else (None,)
        for backend in ("tutti", "cpu:tutti,cuda:tutti"):
            for device in devices:
                run_ranks(2, body, backend=backend, device_id=device)

    def test_a_future_gives_the_result(self):
        def body(rank, size):
            data = values(rank, 8, torch.float32)
            future = dist.all_reduce(data, async_op=True).get_future().then(lambda done: done.value()[0] / size)
            equal(future.wait(), reduced(size, 8, torch.float32, dist.ReduceOp.SUM) / size)
        self.on_ranks(body)

    def test_dropped_works_end(self):
        def body(rank, size):
            data = [values(rank, 1000, torch.float32) for _ in range(20)]
            for tensor in data:
                dist.all_reduce(tensor, async_op=True)
            dist.barrier()
            for tensor in data:
                equal(tensor, reduced(size, 1000, torch.float32, dist.ReduceOp.SUM))
        self.on_ranks(body)

    def test_a_process_forked_while_other_threads_use_python_ends(self):
        def body(rank, size):
            used, forked = threading.Semaphore(0), threading.Event()

            def use(*_):
                used.release()
                forked.wait(20)

            class Memory(bytearray):
                def __del__(self):
                    use()

            store = dist.distributed_c10d._get_default_store()
            work = dist.all_reduce(torch.ones(1), async_op=True)
            if rank == 1:
                store.wait(["started"])
                dist.all_reduce(torch.ones(1))
                return work.wait()
            work.get_future().then(use)
            dist.all_reduce(torch.frombuffer(Memory(4), dtype=torch.float32), async_op=True)  # Freed by another thread.
            store.set("started", "1")
            assert used.acquire(timeout=10)
            assert used.acquire(timeout=10)
            child = os.fork()
            if child == 0:
                signal.alarm(5)
                tutti._c10d.end_with_python()
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            forked.set()
            assert status == 0, f"the child ended with {status}"
        run_ranks(2, body)


class Errors(unittest.TestCase):
    def assert_raises(self, kind, pattern, call):
        with self.assertRaisesRegex(kind, pattern):
            call()

    def test_a_wrong_argument_is_refused_here(self):
        def body(rank, size):
            self.assert_raises(ValueError, "has 3 elements; its size must be equal to 2",
                               lambda: dist.all_gather_into_tensor(torch.empty(3), torch.empty(2)))
            self.assert_raises(ValueError, "the only reduction of sparse tensors is SUM",
                               lambda: dist.all_reduce(torch.eye(2).to_sparse(), op=dist.ReduceOp.MAX))
            self.assert_raises(NotImplementedError, "there is no reduction of",
                               lambda: dist.all_reduce(torch.empty(2, dtype=torch.float8_e4m3fnuz)))
            dist.all_reduce(torch.ones(1))
        run_ranks(2, body)

    def test_ranks_that_differ_get_an_error_with_both_sides(self):
        def body(rank, size):
            self.assert_raises(dist.DistBackendError, r"mismatch.*all_reduce.*\[3\].*\[4\]|mismatch.*\[4\].*\[3\]",
                               lambda: dist.all_reduce(torch.ones(3 + rank)))
        run_ranks(2, body)

    def test_a_rank_that_dies_is_named(self):
        def body(rank, size):
            dist.all_reduce(torch.ones(1))
            if rank == 1:
                os._exit(0)
            self.assert_raises(dist.DistBackendError, "Connection closed by peer.*peer_lost.*group 'world'.*rank 1.* has ended",
                               lambda: dist.all_reduce(torch.ones(1)))
        run_ranks(3, body)

    def test_a_group_has_the_name_that_the_program_gave_it(self):
        def body(rank, size):
            ranks = list(range(size))
            for group, name in ((dist.new_group(ranks, group_desc="of tensors"), "of tensors"), (dist.new_group(ranks), "2"),
                                (dist.new_group(ranks, group_desc=f"on rank {rank}"), f"on rank {rank}")):
                self.assert_raises(dist.DistBackendError, f"mismatch.* group '{name}'",
                                   lambda group=group: dist.all_reduce(torch.ones(3 + rank), group=group))
            part = dist.new_group(ranks, group_desc="of works")
            self.assert_raises(dist.DistBackendError, "mismatch.* group 'of works'",
                               lambda: dist.all_reduce(torch.ones(3 + rank), group=part, async_op=True).wait())
            store = dist.PrefixStore("own", dist.distributed_c10d._get_default_store())
            made = tutti.c10d.create(store, rank, size, name="1")  # As torch calls the first group.
            self.assert_raises(dist.DistBackendError, "mismatch.* group '1'",
                               lambda: made.allreduce([torch.ones(3 + rank)]).wait())
        run_ranks(2, body)

    def test_an_interrupt_ends_ranks_that_wait_for_each_other(self):
        def body(rank, size):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            start = time.monotonic()
            try:
                try:
                    dist.recv(torch.ones(1), (rank + 1) % size)
                except dist.DistBackendError as error:  # Python's handler has not run yet.
                    assert "aborted" in str(error), error
                time.sleep(5)
            except KeyboardInterrupt:
                assert time.monotonic() - start < 10, "the timeout of the group is 20 s"
                return
            raise AssertionError("no KeyboardInterrupt")
        run_ranks(2, body)

    def test_an_interrupt_that_the_program_handles_breaks_nothing(self):
        def body(rank, size):
            heard = []
            signal.signal(signal.SIGINT, lambda *_: heard.append(rank))
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(1.5)
            equal(sum_of(torch.ones(2)), torch.full((2,), float(size)))
            assert heard == [rank]
        run_ranks(2, body)

    def test_the_rank_with_the_tcp_store_leaves_last(self):
        def body(rank, size):
            limit = datetime.timedelta(seconds=20)
            server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
            port = [server and server.port]
            dist.broadcast_object_list(port)
            store = server or dist.TCPStore("127.0.0.1", port[0], is_master=False, timeout=limit)
            group = tutti.c10d.create(store, rank, size, limit)
            del store, server
            group.barrier().wait()
            start = time.monotonic()
            if rank == 1:
                time.sleep(0.4)
            del group
            assert time.monotonic() - start > 0.3
        run_ranks(2, body)

    def test_a_late_rank_is_a_timeout(self):
        def body(rank, size):
            if rank == 0:
                self.assert_raises(dist.DistBackendError, "Timed out waiting.*missing: 1.*Socket Timeout",
                                   lambda: dist.all_reduce(torch.ones(1)))
                dist.distributed_c10d._get_default_store().set("waited", "1")
            else:
                dist.distributed_c10d._get_default_store().wait(["waited"])
        run_ranks(2, body, group_timeout=2)


if __name__ == "__main__":
    print("tutti", os.environ.get("TUTTI_BACKEND", "auto"), "under torch", torch.__version__)
    unittest.main()
