"""`python -m tidelog.cli`."""

from tidelog.cli import main

main()
