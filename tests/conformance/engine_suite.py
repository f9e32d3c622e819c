"""What every engine must do. Subclass ``EngineSuite`` in a test module, give it engines, and pytest runs it all.

A subclass named ``Test...`` defines ``make`` and, where its engine needs it, loosens ``tolerance`` or turns off what
its ``capabilities`` do not promise. The tests lie by topic in the modules named ``engine_...`` beside this one.
"""

from __future__ import annotations

from engine_control import ControlSuite
from engine_ends import EndSuite
from engine_memory import MemorySuite
from engine_tokens import TokenSuite


class EngineSuite(TokenSuite, EndSuite, MemorySuite, ControlSuite):
    """All of it."""
