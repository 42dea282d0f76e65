"""The modules of tutti.losses on 1 to 3 ranks, over tutti and torch's Gloo, against one process.

usage: losses_ranks_test.py [-v] [TEST...]. Ranks are processes forked here."""
import copy
import itertools
import unittest
import unittest.mock as mock
import warnings

import torch
import torch.distributed as dist

import tutti
from tutti import _loss, losses
from tutti.distributed import all_gather_no_grad, all_gather_with_grad
from calls_test import run_ranks
from losses_test import C, EXACT, RANKING, rows_of


class Ranks(unittest.TestCase):
    """W ranks with uneven rows give what one process gives."""

    def on_ranks(self, body, sizes=(1, 2, 3), backends=("tutti", "gloo")):
        for size, backend in itertools.product(sizes, backends):
            with self.subTest(size=size, backend=backend):
                run_ranks(size, body, backend=backend, timeout=60)

    @staticmethod
    def part(rank, size, rows):
        """Rank 1 has no rows; the others share them unevenly."""
        if size == 1:
            return slice(0, rows)
        return {0: slice(0, rows // 3), 1: slice(rows // 3, rows // 3 if size == 3 else rows),
                2: slice(rows // 3, rows)}[rank]

    def test_values_and_gradients(self):
        def body(rank, size):
            for queue, sample in ((0, None), (50, None), (0, 30), (50, 30)):
                for _, make in RANKING:
                    loss = make(queue_size=queue, max_pool_size=sample)
                    alone = make(queue_size=queue, max_pool_size=sample, gather_distributed=False)
                    for step in range(3):
                        rows = rows_of(step, 40)
                        mine = [t[self.part(rank, size, 40)].clone() for t in rows]
                        results = []
                        for module, (x, y, w, iid) in ((loss, mine), (alone, rows)):
                            torch.manual_seed(step + (100 * rank if module is loss else 0))  # Rank 0's counts.
                            x.requires_grad_()
                            value, each, valid = module(x, y, iid, True, sample_weight=w)
                            value.backward()
                            results.append((value.detach(), each.detach(), valid, x.grad))
                        for got, expected in zip(results[0][:3], results[1][:3]):
                            torch.testing.assert_close(got, expected, **EXACT)
                        torch.testing.assert_close(results[0][3], size * results[1][3][self.part(rank, size, 40)], **EXACT)
                    torch.testing.assert_close(loss.state_dict(), alone.state_dict(), **EXACT)
        self.on_ranks(body)

    def test_ranks_over_tutti_share_the_pool(self):
        def body(rank, size):
            x, y, _, _ = rows_of(rank, 10 + rank)
            loss = losses.SmoothAPLoss(C)
            for _ in range(2):
                with mock.patch.object(losses.SmoothAPLoss, "_op", mock.Mock(wraps=losses.SmoothAPLoss._op)) as op:
                    loss(x, y)
                pool, pool_rows, group = (op.call_args.args[i] for i in (0, 4, 10))
                assert len(pool) == sum(range(10, 10 + size)) + 1024
                shares = dist.get_backend() == "tutti"
                assert (pool_rows == list(range(10, 10 + size)), group != "") == (shares, shares), (pool_rows, group)
        self.on_ranks(body, sizes=(2, 3))

    def test_focal_losses(self):
        def body(rank, size):
            x, y, w, _ = rows_of(9, 40)
            for make, targets, reductions in ((losses.SigmoidFocalLoss, torch.sigmoid(x), ("mean", "sum", "none")),
                                              (losses.SoftmaxFocalLoss, y, ("mean_positive", "mean", "none"))):
                for reduction in reductions:
                    weight = w[:, None] if targets.ndim == 2 else w
                    part = self.part(rank, size, 40)
                    mine, whole = x[part].clone().requires_grad_(), x.clone().requires_grad_()
                    with mock.patch.object(_loss, "gather_rows", wraps=_loss.gather_rows) as gathers:
                        got = make(reduction=reduction)(mine, targets[part], sample_weight=weight[part])
                    self.assertEqual(gathers.called, reduction == "none" and size > 1)
                    expected = make(reduction=reduction, gather_distributed=False)(whole, targets, sample_weight=weight)
                    torch.testing.assert_close(got, expected, **EXACT)
                    got.sum().backward()
                    expected.sum().backward()
                    torch.testing.assert_close(mine.grad, size * whole.grad[part], **EXACT)
        self.on_ranks(body)

    def test_training_gives_the_parameters_of_one_process(self):
        def body(rank, size):
            def model():
                torch.manual_seed(1)
                return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, C)).double()

            def train(module, loss, part, reduce):
                optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
                for step in range(4):
                    rows = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))[part]
                    optimizer.zero_grad()
                    loss(module(rows), rows_of(step, 40)[1][part]).backward()
                    if reduce:
                        for parameter in module.parameters():
                            dist.all_reduce(parameter.grad)
                    optimizer.step()

            part = self.part(rank, size, 40)
            for make in [make for _, make in RANKING] + [losses.SoftmaxFocalLoss]:
                options = {} if make is losses.SoftmaxFocalLoss else {"queue_size": 60}
                alone, summed, averaged, by_hand = model(), model(), model(), model()
                train(alone, make(gather_distributed=False, **options), slice(None), False)
                train(summed, make(grad_scale="mean", **options), part, True)
                parallel = torch.nn.parallel.DistributedDataParallel(averaged)
                train(parallel, make(**options), part, False)
                own = make(gather_distributed=False, **options)
                train(torch.nn.parallel.DistributedDataParallel(by_hand), lambda x, y, loss=own: loss(
                    all_gather_with_grad(x), all_gather_no_grad(y)), part, False)
                for expected, *others in zip(*(m.parameters() for m in (alone, summed, averaged, by_hand))):
                    for other in others:
                        torch.testing.assert_close(other, expected, **EXACT)
        self.on_ranks(body, backends=("tutti",))

    def test_compiled_losses_are_the_same(self):
        """With graph breaks: ranks agree about each call."""
        def body(rank, size):
            for make in [make for _, make in RANKING[:2]] + [lambda **o: losses.SoftmaxFocalLoss()]:
                for queue in (0, 30):
                    plain, kept = make(queue_size=queue), make(queue_size=queue)
                    module = torch.compile(kept, backend="aot_eager")
                    for step in range(2):
                        rows = [t[self.part(rank, size, 40)] for t in rows_of(step, 40)]
                        grads = []
                        for loss in (plain, module):
                            x = rows[0].clone().requires_grad_()
                            loss(x, rows[1]).backward()
                            grads.append(x.grad)
                        torch.testing.assert_close(*grads, rtol=0, atol=0)
                    torch.testing.assert_close(plain.state_dict(), kept.state_dict(), rtol=0, atol=0)
        self.on_ranks(body, sizes=(2,), backends=("tutti",))

    def test_without_counted_rows_the_loss_is_zero(self):
        def body(rank, size):
            x, y, _, _ = rows_of(rank, 12)
            for queue, (_, make) in itertools.product((0, 20), RANKING):
                value = make(queue_size=queue, reduction="none")(x, torch.full_like(y, -100))
                torch.testing.assert_close(value, torch.zeros_like(value))
            some = losses.SmoothAPLoss(C, queue_size=0, reduction="none")(x, torch.full_like(y, -100 if rank == 1 else 0))
            assert some.isnan().all(), some  # Rank 0 has rows, all of one class.
        self.on_ranks(body, sizes=(2, 3))

    def test_a_warning_that_is_an_error_comes_after_the_call(self):
        def body(rank, size):
            x = torch.arange(6.0)[:, None] + rank
            loss = losses.SmoothAPLoss(1, queue_size=0)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                y = torch.tensor([0, 1, 0, 1, 0, 3 if rank == 1 else 1])
                try:
                    loss(x, y)
                    assert rank == 0, "no warning"
                except UserWarning as warning:
                    assert "count as positive" in str(warning), warning
            loss(x, y.clamp(max=1))
        self.on_ranks(body, sizes=(2,))

    def test_rows_that_were_gathered_before_are_a_warning(self):
        def body(rank, size):
            x, y, _, _ = rows_of(rank, 12)
            gathered = all_gather_no_grad(x), all_gather_no_grad(y)
            for make, warns in itertools.product((lambda: losses.SmoothAPLoss(C), losses.SoftmaxFocalLoss), (False, True)):
                loss = make()
                with warnings.catch_warnings(record=True) as heard:
                    warnings.simplefilter("always")
                    for _ in range(2):
                        loss(*(gathered if warns else (x, y)))
                        loss(x[:0], y[:0])
                texts = [str(warning.message) for warning in heard if "all ranks pass the same rows" in str(warning.message)]
                assert len(texts) == warns and all("gather_distributed=False" in text for text in texts), texts
        self.on_ranks(body, sizes=(2, 3), backends=("tutti",))

    def test_copies_keep_the_group(self):
        def body(rank, size):
            loss = losses.RecallAtQuantileLoss(C, quantile=0.3, queue_size=20, group=dist.new_group(range(size)))
            x, y, _, _ = rows_of(rank, 12)
            loss(x, y)
            other = copy.deepcopy(loss)
            assert other.group is loss.group
            torch.testing.assert_close(loss(x, y), other(x, y), rtol=0, atol=0)
            torch.testing.assert_close(loss.state_dict(), other.state_dict(), rtol=0, atol=0)
        self.on_ranks(body, sizes=(2,))

    def test_ranks_that_differ_are_refused_on_all(self):
        def body(rank, size):
            x, y, _, _ = rows_of(rank, 12)
            with self.assertRaisesRegex((ValueError, dist.DistBackendError), "temperature"):
                losses.SmoothAPLoss(C, temperature=0.1 * (1 + rank % 2))(x, y)
            with self.assertRaisesRegex(ValueError, "options or rows of SigmoidFocalLoss of ranks 0 and 1.*gamma"):
                losses.SigmoidFocalLoss(gamma=1.0 + rank % 2)(x, torch.sigmoid(x))
            focal = losses.SoftmaxFocalLoss()
            for bad in ((x, y[1:]), (x.double() if x.dtype == torch.float32 else x.float(), y), (x[:, 1:], y)):
                with self.assertRaises((ValueError, dist.DistBackendError)):
                    focal(*(bad if rank == 1 else (x, y)))
            focal(x, y)
            loss = losses.SmoothAPLoss(C)
            loss(x, y)
            if rank == 1:
                loss.reset_queue()
            with self.assertRaisesRegex(ValueError, "queues of ranks 0 and 1 differ"):
                loss(x, y)
            loss.reset_queue()
            loss(x, y)
        self.on_ranks(body, sizes=(2, 3))

    def test_a_call_that_one_rank_refuses_is_an_error_everywhere(self):
        def body(rank, size):
            x, y, w, _ = rows_of(rank, 12)
            bad = y.clone()
            bad[0] = 7
            for queue in (0, 20):
                loss = losses.RecallAtQuantileLoss(C, quantile=0.3, queue_size=queue)
                state = copy.deepcopy(loss.state_dict())
                for targets, weight in ((bad if rank == 1 else y, w), (y[1:] if rank == 1 else y, w),
                                        (y, w if rank == 1 else None), (y, -w if rank == 1 else w)):
                    with self.assertRaises((ValueError, dist.DistBackendError)):
                        loss(x, targets, sample_weight=weight)
                with self.assertRaises((TypeError, ValueError, AttributeError)):
                    loss(x, None if rank == 1 else y)
                torch.testing.assert_close(loss.state_dict(), state)
                loss(x, y)
            focal = losses.SoftmaxFocalLoss()
            for module in (focal, torch.compile(focal, backend="eager")):
                for targets in (bad, None):
                    with self.assertRaises((ValueError, AttributeError, dist.DistBackendError)):
                        module(x, targets if rank == 1 else y)
                module(x, y)
        self.on_ranks(body, sizes=(2, 3))


if __name__ == "__main__":
    print("tutti", tutti.__version__, "under torch", torch.__version__)
    unittest.main()
