"""Python clients beside each other, against one broker."""
