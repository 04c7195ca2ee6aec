"""The brokers of the SDK's tests."""

from tests.unit.sdk.conftest import broker, shared

__all__ = ["broker", "shared"]
