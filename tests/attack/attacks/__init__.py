"""The attacks. Modules in this folder and decorated functions in them are found automatically."""
