"""Stories in virtual time: scripted brokers and a client on a simulated network."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.network import SimulatedNetwork
from tests.simulation.world.process import SimulatedProcess
from tests.unit.client.scripted_broker import ScriptedBroker
from tidelog.client.pool import Client
from tidelog.client.settings import ClientSettings
from tidelog.client.transport import BrokerConnection
from tidelog.protocol.frames import new_scratch


class World:
    """One simulation."""

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.loop = loop
        self.network = SimulatedNetwork(loop, seed)
        self.process = SimulatedProcess(loop, "client", "client-host")
        self.client_network = self.network.of(self.process)

    async def broker(self, host: str, port: int = 0) -> ScriptedBroker:
        """A broker on a separate host."""
        process = SimulatedProcess(self.loop, f"broker on {host}", host)
        broker = ScriptedBroker()
        await broker.listen(self.network.of(process), host, port)
        return broker

    async def connect(
        self, broker: ScriptedBroker, settings: ClientSettings | None = None
    ) -> BrokerConnection:
        """A connection of the client."""
        settings = settings if settings is not None else ClientSettings()
        return await BrokerConnection.open(
            self.client_network, broker.address, settings, new_scratch()
        )

    def client(self, *addresses: tuple[str, int], settings: ClientSettings | None = None) -> Client:
        """A client of the cluster."""
        return Client(self.client_network, self.process.clock, addresses, settings)


Story = Callable[[World], Coroutine[Any, Any, None]]


def play(story: Story, seed: int = 1) -> None:
    """Run a story to its end. An unhandled exception fails it."""
    with SimulatedLoop(seed) as loop:
        loop.run(story(World(loop, seed)), seconds_max=3600)
        assert loop.unhandled == []
