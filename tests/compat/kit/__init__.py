"""The clients under test, as programs and behind one interface, and what judges them."""
