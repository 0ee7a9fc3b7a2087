"""Forked processes that join torch.distributed, with a socket that their parent has opened: nobody can take its port before."""

from __future__ import annotations

import os
import socket

import torch.distributed as dist

__all__ = ["join"]


def join(listener: socket.socket, rank: int, world_size: int) -> None:
    """Set what a launcher sets, and, where there are others, initialise torch.distributed on gloo.

    Args:
        listener: Listens, and was inherited by all ranks. Rank 0 serves the key-value store through it.
        rank: Of this process.
        world_size: Processes.
    """
    host, port = listener.getsockname()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR=host, MASTER_PORT=str(port))
    if world_size == 1:
        listener.close()
        return
    if rank == 0:
        store = dist.TCPStore(host, port, world_size, is_master=True, master_listen_fd=listener.detach())
    else:
        listener.close()  # else it would be listened to after the end of rank 0
        store = dist.TCPStore(host, port, world_size, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
