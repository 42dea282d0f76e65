"""The backend "tutti" of torch.distributed, for tensors on cpu and cuda."""
import atexit
import os

import torch.distributed as dist

from tutti import _c10d, _interrupt


def create(store, rank, size, timeout=dist.default_pg_timeout, name="tutti", backend=None, device_backend=None):
    """A backend of c10d that torch.distributed does not know, for frameworks that make groups of their own, such as
    torchft. Collective: every rank of `size` calls it with one store of c10d. timeout: a timedelta, the limit of each
    call; name: that of the group in errors. backend, device_backend: the transport, and that of tensors on cuda; by
    default TUTTI_BACKEND and TUTTI_DEVICE_BACKEND, or else every group chooses. Its methods are those of torch's
    ProcessGroupGloo."""
    made = _c10d.create(store, rank, size, timeout.total_seconds(), name,
                        backend or os.environ.get("TUTTI_BACKEND", "auto"),
                        device_backend or os.environ.get("TUTTI_DEVICE_BACKEND", "auto"))
    _interrupt.start()
    _interrupt.made.add(made)
    return made


def _create(options, _=None):
    return create(options.store, options.group_rank, options.group_size, options.timeout, options.group_id)


def register():
    """Registers the backend, once. torch calls it from 2.14 on for the entry point torch.distributed.backends."""
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
