"""Tidelog: a transactional log on object storage that speaks the Kafka protocol.

The modules here are the base that every other folder may import: clock, entropy, network, offload,
errors, identifiers, crash points. They import no other folder.
"""

from pathlib import Path

__version__ = "0.1.0"

# A wheel carries the subsystems inside this package; in a checkout they sit beside it.
_here = Path(__file__).resolve().parent
if not (_here / "storage").is_dir() and (_here.parent / "storage").is_dir():
    __path__.append(str(_here.parent))
