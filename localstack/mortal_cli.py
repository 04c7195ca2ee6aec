"""`python -m tidelog.localstack.mortal_cli`: the command line of `tidelog`, for crash tests.

The process kills itself at the crash points that TIDELOG_CRASH_POINTS names. `tidelog` itself knows
no such variable.
"""

from __future__ import annotations

import os
import sys

from tidelog.cli import main
from tidelog.localstack.crash_points import CRASH_POINTS_VARIABLE, KillAtHit


def run() -> None:
    """Run the command line until a crash point; never returns."""
    text = os.environ[CRASH_POINTS_VARIABLE]
    sys.stderr.write(f"the process will kill itself on purpose at {text}\n")
    main(KillAtHit.parse(text))


if __name__ == "__main__":
    run()
