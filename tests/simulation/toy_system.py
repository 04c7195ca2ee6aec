"""The toy log as a system under test: tries the harness, not Tidelog."""

from __future__ import annotations

from tests.simulation.actors.log_client import LogClient
from tests.simulation.cluster import Environment
from tests.simulation.run import System
from tests.simulation.toy_log import ToyBroker, ToyClient, ToyFaults


def toy_system(faults: ToyFaults | None = None) -> System:
    """A toy cluster with the chosen faults."""

    async def broker(environment: Environment) -> None:
        process = environment.process
        await ToyBroker(
            environment.store, process.clock, environment.network, process, faults
        ).run()

    def client(environment: Environment) -> LogClient:
        process = environment.process
        return ToyClient(environment.network, process.clock, process)

    return System(broker, client, exclusive=False)
