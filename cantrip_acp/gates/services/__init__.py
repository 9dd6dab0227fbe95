"""Services: commands that go on beside an entity's turns (dev servers, watchers, databases, long builds), and the gates ``start``,
``output`` and ``stop``.

It may import the sandbox. Start reading with `services.py`: the services of one entity, which its executor owns.
"""

from cantrip_acp.gates.services.services import BY_USER, Place, Services

__all__ = ["BY_USER", "Place", "Services"]
