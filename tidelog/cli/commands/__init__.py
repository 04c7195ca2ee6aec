"""The commands, one module for each. The module has an object of the command's name."""
