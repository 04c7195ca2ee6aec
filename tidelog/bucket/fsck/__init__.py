"""The checks of `tidelog fsck`."""
