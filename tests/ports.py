"""Ports for servers that cannot be asked to choose one themselves."""

from __future__ import annotations

import random
import socket
from pathlib import Path

FIRST = 10_000


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses, and that the system gives to no connection before it is taken."""
    most = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(FIRST, max(most, FIRST + 1000))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
