"""How ranks are started and find each other without ssh, and how they end together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvdtrain.launch.session import Session

#: This process's part in its world, once a framework face has begun one.
active: Session | None = None
