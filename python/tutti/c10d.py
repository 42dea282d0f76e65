"""The backend "tutti" of torch.distributed, for tensors on cpu and cuda."""
import atexit
import os

import torch.distributed as dist

from tutti import _c10d, _interrupt


def _create(options, backend_options=None):
    """What c10d calls to make a group. TUTTI_BACKEND names the transport, TUTTI_DEVICE_BACKEND that of tensors on cuda;
    by default every group chooses."""
    _interrupt.watch()
    return _c10d.create(options.store, options.group_rank, options.group_size, options.timeout.total_seconds(),
                        options.group_id, os.environ.get("TUTTI_BACKEND", "auto"),
                        os.environ.get("TUTTI_DEVICE_BACKEND", "auto"))


def register():
    """Registers the backend, once. torch 2.15 calls it for the entry point torch.distributed.backends."""
    if "tutti" not in dist.Backend.backend_list:
        dist.Backend.register_backend("tutti", _create, extended_api=True, devices=["cpu", "cuda"])


def describe(group=None):
    """The backend and transport under a group of c10d, such as "shm over shared memory"; also of its group for a
    device, once there is one."""
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    backend = next(iter(_interrupt.backends_of(group)), group._get_backend(group._device_types[0]))
    return _c10d.describe(backend)


register()
# Callbacks of futures are Python's; none may run after the interpreter has ended.
atexit.register(_c10d.drain_futures)
