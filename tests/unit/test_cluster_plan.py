"""Ports of a test cluster's daemons: nobody takes them between their choice and the daemon's start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hvdtrain.testcluster import plan
from hvdtrain.testcluster.errors import RequestError
from hvdtrain.testcluster.plan import free_ports


def test_ports_are_not_those_that_the_kernel_gives_to_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plan, "_GIVEN_BY_KERNEL", tmp_path / "range")
    (tmp_path / "range").write_text("12000\t60999\n")
    found = free_ports(7)
    assert len(set(found)) == 7
    assert all(10_000 <= port < 12_000 for port in found)
    # Where it gives nearly all, or does not say.
    (tmp_path / "range").write_text("10240\t65535\n")
    assert len(set(free_ports(7))) == 7
    (tmp_path / "range").unlink()
    assert all(10_000 <= port < 32_768 for port in free_ports(7))


def test_a_port_where_something_listens_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr(plan.random, "sample", lambda legal, count: [port, port])
        with pytest.raises(RequestError, match="1 TCP ports were needed, and only 0 are free"):
            free_ports(1)
