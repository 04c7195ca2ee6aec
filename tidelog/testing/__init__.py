"""A test kit for applications: a broker in the background of a test.

`with tidelog.testing.Broker() as broker:` serves `broker.bootstrap`. pytest has the fixtures of
`tidelog.testing.plugin`, unittest the class `BrokerTestCase`.
"""

from typing import TYPE_CHECKING

from tidelog.extras import imported

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker
    from tidelog.testing.test_case import BrokerTestCase

__all__ = ["Broker", "BrokerTestCase"]

_MODULES = {"Broker": "broker", "BrokerTestCase": "test_case"}


def __getattr__(name: str) -> object:
    # pytest imports this package in every run, for its plugin.
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(imported(f"{__name__}.{module}", f"{__name__}.{name}"), name)


def __dir__() -> list[str]:
    return __all__
