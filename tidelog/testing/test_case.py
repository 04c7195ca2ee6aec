"""unittest's way to a broker."""

from __future__ import annotations

import unittest

from tidelog.testing.broker import Broker


class BrokerTestCase(unittest.TestCase):
    """A test case with one broker, in memory, for all its tests: `self.broker`."""

    broker: Broker

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.broker = cls.enterClassContext(Broker())
