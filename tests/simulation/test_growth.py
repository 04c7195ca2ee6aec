"""Objects in a bucket stay bounded under constant load, and under crashes. `make growth-virtual`
runs longer."""

from __future__ import annotations

import pytest

from tests.simulation.growth import Load, grow

# Minutes of computing beside other tests.
pytestmark = pytest.mark.timeout(1200)

SCALE = 60.0
"""A grace of 10 s and passes of 1 s. There are as many deletions a second as in production."""


@pytest.mark.parametrize(
    ("rate", "hours"),
    [
        (630, 1),
        pytest.param(250, 3, marks=pytest.mark.slow),
        pytest.param(630, 3, marks=pytest.mark.slow),
        pytest.param(2000, 3, marks=pytest.mark.slow),
    ],
)
def test_the_bucket_stays_level_under_constant_load(rate: int, hours: float) -> None:
    load = Load(rate, hours, SCALE)
    growth = grow(load)
    assert growth.slots > 0.95 * rate * 3600 * hours / SCALE, "the broker did not keep up"
    assert growth.is_level(), growth.samples
    # Objects written within the grace, two passes, and the time over which deletions are spread.
    assert max(growth.samples) <= rate * (load.grace_seconds + 3.5 * load.interval_seconds)


@pytest.mark.parametrize("life_seconds", [120, 480])
def test_the_bucket_stays_level_though_no_process_lives_for_the_grace(life_seconds: int) -> None:
    load = Load(100, 1.5, SCALE, life_seconds)
    growth = grow(load)
    assert growth.lives > 60 * 90 / life_seconds / 1.2
    # A dead process leaves its seal and some entries of the metadata log.
    assert growth.is_level(share=0.1 + 4 * growth.lives / max(growth.samples)), growth.samples
    assert max(growth.samples) < 0.6 * growth.slots
