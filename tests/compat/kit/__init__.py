"""The clients under test, as programs and behind one interface, and the judges of their records."""
