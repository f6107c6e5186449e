"""Keys and values by which Gloo's ranks find each other."""

from __future__ import annotations

import threading
from collections import defaultdict

#: How long a rank's question for the addresses of all others stays open before it is told to ask again.
HOLD_SECONDS = 1.0


class Store:
    """Values by scope and key, for many threads. In a mesh each of `size` ranks puts its addresses under its number."""

    def __init__(self) -> None:
        self._scopes: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        #: Scope -> size of the mesh that somebody waits for.
        self._awaited: dict[str, int] = {}
        self._complete = threading.Condition()

    def get(self, path: str) -> bytes | None:
        """The value at scope/key; at scope/addresses/rank/size the `addresses`. None where there is none (yet)."""
        match path.rsplit("/", 3):
            case [scope, "addresses", rank, size] if rank.isdecimal() and size.isdecimal():
                return self.addresses(scope, int(rank), int(size))
        scope, _, key = path.rpartition("/")
        return self._scopes[scope].get(key)

    def put(self, path: str, value: bytes) -> None:
        """Keep `value` at scope/key."""
        scope, _, key = path.rpartition("/")
        with self._complete:
            values = self._scopes[scope]
            values[key] = value
            # Whoever waits is woken once, not for each of its peers: in a large world that would take longer than the rest.
            if scope in self._awaited and len(values) >= self._awaited[scope]:
                self._complete.notify_all()

    def delete(self, path: str) -> None:
        """Forget what is at scope/key, if anything is."""
        scope, _, key = path.rpartition("/")
        with self._complete:
            self._scopes[scope].pop(key, None)

    def addresses(self, scope: str, rank: int, size: int, seconds: float = HOLD_SECONDS) -> bytes | None:
        """What the others have put for `rank`, end to end in order of ranks; None if one of them has not put after `seconds`.

        Each rank puts `size` - 1 addresses of equal length, in order of the ranks they are for, without one for itself.
        """
        values, others = self._scopes[scope], [each for each in range(size) if each != rank]
        with self._complete:
            self._awaited[scope] = size
            if not self._complete.wait_for(
                lambda: len(values) >= len(others) and all(str(each) in values for each in others), seconds
            ):
                return None
            lists = [values[str(each)] for each in others]
        parts = []
        for other, addresses in zip(others, lists, strict=True):
            length = len(addresses) // len(others)
            place = rank if rank < other else rank - 1
            parts.append(addresses[place * length : (place + 1) * length])
        return b"".join(parts)
